// SPDX-License-Identifier: Apache-2.0
// The tables and the JSON of `launcher top`.
#include "launcher/verbs/top.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

TopFigures Figures() {
  TopFigures figures;
  NodeStatus* node = figures.cluster.add_nodes();
  node->set_host("alpha");
  node->set_slots(4);
  node->set_used_slots(2);
  node->set_connected(true);
  GpuUsage* gpu = node->add_gpus();
  gpu->set_uuid("GPU-1a2b3c4d-5e6f");
  gpu->set_name("NVIDIA H200");
  gpu->set_memory(int64_t{141} << 30);
  gpu->set_used(int64_t{12} << 30);
  gpu->set_utilisation(97);
  gpu->set_watts(512.3);
  gpu->set_watts_limit(700);
  gpu->set_celsius(61);
  gpu->set_sm_mhz(1980);
  gpu->set_memory_mhz(3201);
  gpu->add_pids(4711);
  GpuUsage* part = node->add_gpus();
  part->set_uuid("MIG-77");
  part->set_name("MIG 1g.18gb");
  figures.cluster.add_nodes()->set_host("gone");
  DescribeJobResponse& job = figures.jobs.emplace_back();
  job.mutable_status()->set_job_id("gpt-1");
  job.mutable_spec()->set_name("gpt");
  MemberStatus* worker = job.add_members();
  worker->set_host("alpha");
  worker->set_pid(4711);
  worker->mutable_device()->set_kind("cuda");
  worker->mutable_device()->set_uuid("GPU-1a2b3c4d-5e6f");
  worker->mutable_progress()->set_step(12);
  worker->mutable_progress()->set_total_steps(1000);
  worker->mutable_progress()->set_loss(9.87654);
  worker->mutable_progress()->set_samples_per_second(501.4);
  worker->mutable_usage()->set_rss_bytes(3 << 20);
  worker->mutable_usage()->set_cpu_percent(101.2);
  worker->mutable_usage()->set_gpu_bytes(int64_t{12} << 30);
  MemberStatus* spare = job.add_members();
  spare->set_rank(1);
  spare->set_host("alpha");
  spare->set_standby(true);
  DescribeJobResponse& waiting = figures.jobs.emplace_back();
  waiting.mutable_status()->set_job_id("mlp-2");
  waiting.mutable_status()->set_state(PENDING);
  return figures;
}

TEST(Top, Table) {
  EXPECT_EQ(TopTable(Figures()),
            "1 node, 2 of 4 slots in use, 2 jobs\n"
            "\n"
            "HOST   GPU           NAME         MEMORY                USE  POWER        TEMP  "
            "CLOCKS           PROCESSES\n"
            "alpha  GPU-1a2b3c4d  NVIDIA H200  12.0 GiB / 141.0 GiB  97%  512 / 700 W  61 C  "
            "1980 / 3201 MHz  4711\n"
            "alpha  MIG-77        MIG 1g.18gb  -                     -    -            -     "
            "-                -\n"
            "\n"
            "JOB    RANK  HOST     PID   DEVICE        STEP     LOSS    SAMPLES/S  CPU   MEMORY   "
            "GPU MEMORY\n"
            "gpt-1  0     alpha    4711  GPU-1a2b3c4d  12/1000  9.8765  501        101%  3.0 MiB  "
            "12.0 GiB\n"
            "gpt-1  1     alpha    -     cpu           standby  -       -          -     -        "
            "-\n"
            "mlp-2  -     PENDING  -     -             -        -       -          -     -        "
            "-\n");
}

TEST(Top, WithoutGpusAndJobsItIsOneLine) {
  EXPECT_EQ(TopTable({}), "0 nodes, 0 of 0 slots in use, 0 jobs\n");
}

TEST(Top, JsonIsOneLineWithoutTheJobsFiles) {
  const std::string text = TopJson(Figures());
  EXPECT_THAT(text, testing::StartsWith(R"({"schema":1,"nodes":[{)"));
  EXPECT_THAT(text, testing::HasSubstr(R"("utilisation":97)"));
  EXPECT_THAT(text, testing::HasSubstr(R"("job_id":"mlp-2")"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\"spec\"")));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

}  // namespace
}  // namespace lockstep::launcher
