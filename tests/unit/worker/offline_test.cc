// SPDX-License-Identifier: Apache-2.0
// What a job needs and costs.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/nccl_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"
#include "worker/commands/job_report.h"
#include "worker/setup/memory_need.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MemoryNeed, AddsUpAndAgreesWithThePlan) {
  const Compiled job(SmallJob());
  const MemoryNeed& need = job.compiled.need;
  const engine::Plan& plan = *job.compiled.plan;
  const auto parameters = static_cast<size_t>(plan.parameter_count());
  EXPECT_EQ(parameters, 40u * 64 + 64 + 64 * 5 + 5);
  EXPECT_GE(need.weights, parameters * 4);
  EXPECT_LT(need.weights, parameters * 4 + 4 * 64);
  EXPECT_EQ(need.weights + need.optimizer, plan.state_bytes());
  EXPECT_EQ(need.activations + need.workspace, plan.arena_bytes());
  EXPECT_EQ(need.gradients, static_cast<size_t>(job.compiled.gradient_buffers) *
                                static_cast<size_t>(job.compiled.vector_count) * 4);
  // Six batches of twelve samples and a block of fifty, of 41 numbers each.
  EXPECT_EQ(need.data, (6u * 12 + 50) * 41 * 4);
}

TEST(MemoryNeed, GradientsAreCountedWhereTheyLie) {
  JobSpec job = SmallJob();
  const JobData data = OpenJobData(job).value();
  EXPECT_EQ(Compiled(job).compiled.need.gpu.total(), 0u);
  job.mutable_resources()->set_device("cuda");
  const CompiledJob by_host = CompileJob(job, data).value();
  const CompiledJob by_nccl = CompileJob(job, data, GradientPlace::kGpu).value();
  const size_t vector = static_cast<size_t>(by_host.vector_count) * 4;
  const auto buffers = static_cast<size_t>(by_host.gradient_buffers);
  EXPECT_EQ(by_host.need.gradients, buffers * vector);
  // A second block of fifty, and two where copies to the GPU begin.
  EXPECT_EQ(by_host.need.data, Compiled(SmallJob()).compiled.need.data + 3u * 50 * 41 * 4);
  EXPECT_EQ(by_nccl.need.gradients, 0u);
  EXPECT_EQ(by_host.need.gpu.vectors, 0u);
  EXPECT_GE(by_nccl.need.gpu.vectors, (buffers + 1) * vector);
  EXPECT_GE(by_host.arena_bytes, by_nccl.arena_bytes + buffers * vector);
  EXPECT_EQ(by_host.need.gpu.plan, by_host.plan->device_bytes(0));
  EXPECT_GT(by_host.need.gpu.plan, by_host.plan->state_bytes());
  EXPECT_EQ(by_nccl.need.gpu.plan, by_host.need.gpu.plan);
  const MachineSpeed machine{1e9, 1e9, 2};
  const std::string text = ReportText(ReportOf(by_nccl, data.train->size(), machine));
  EXPECT_THAT(text, HasSubstr("which NCCL reduces there"));
  EXPECT_THAT(ReportText(ReportOf(by_host, data.train->size(), machine)),
              testing::Not(HasSubstr("NCCL")));
  job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(by_nccl.need.gpu.total()) - 1);
  EXPECT_TRUE(CompileJob(job, data).ok());
  const auto refused = CompileJob(job, data, GradientPlace::kGpu);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("resources.gpu_memory"));
}

TEST(MemoryNeed, WhatNcclReceivesIsCounted) {
  JobSpec job = SmallJob();
  job.mutable_resources()->set_device("cuda");
  job.mutable_resources()->set_nproc_per_node(1);
  job.mutable_train()->set_shards(8);
  job.mutable_train()->set_global_batch(48);
  const JobData data = OpenJobData(job).value();
  const CompiledJob alone = CompileJob(job, data, GradientPlace::kGpu).value();
  EXPECT_EQ(MostStaging(job, alone.vector_count), 0);
  EXPECT_EQ(alone.need.gpu.vectors,
            NcclMemoryBytes(alone.gradient_buffers, alone.vector_count, /*staging=*/0));
  // Of eight workers each has one node, of which every other adds a slice.
  job.mutable_resources()->set_nproc_per_node(8);
  const CompiledJob eight = CompileJob(job, data, GradientPlace::kGpu).value();
  const int64_t slice = SliceOf(eight.vector_count, 8, 0).size() + 16;
  EXPECT_EQ(MostStaging(job, eight.vector_count), 8 * slice);
  EXPECT_EQ(eight.need.gpu.vectors,
            NcclMemoryBytes(eight.gradient_buffers, eight.vector_count, 8 * slice));
  // What the vectors take is not the plan's.
  EXPECT_EQ(PlanLimit(job, eight.need.gpu).value(), 0u);
  job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(eight.need.gpu.total()));
  EXPECT_EQ(PlanLimit(job, eight.need.gpu).value(), eight.need.gpu.plan);
  job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(eight.need.gpu.vectors));
  EXPECT_EQ(PlanLimit(job, eight.need.gpu).status().code(), absl::StatusCode::kResourceExhausted);
  job.mutable_nccl()->set_order("fastest");
  EXPECT_EQ(MostStaging(job, eight.vector_count), 0);
}

TEST(MemoryNeed, ItIsSaidThatCopiesOfWeightsHadNoRoom) {
  JobSpec job = SmallJob();
  job.mutable_resources()->set_device("cuda");
  job.mutable_train()->set_precision("bf16");
  job.mutable_train()->mutable_eval()->set_block(1);
  const auto told = [&job](bool room, bool kept) {
    const Compiled now(job);
    const JobReport report =
        ReportOf(now.compiled, now.data.train->size(), MachineSpeed{1e9, 1e9, 2});
    const bool said = ReportText(report).find("no room for copies of weights") != std::string::npos;
    EXPECT_EQ(said, !room);
    EXPECT_THAT(ReportJson(report),
                HasSubstr(kept ? "\"keeps_constants\":true" : "\"keeps_constants\":false"));
    return static_cast<int64_t>(now.compiled.need.gpu.total());
  };
  const int64_t with = told(true, true);
  job.mutable_resources()->set_gpu_memory(with);
  told(true, true);
  job.mutable_resources()->set_gpu_memory(with - 1);
  told(false, false);
  job.mutable_train()->mutable_passes()->set_keep_constants(false);
  told(true, false);
}

TEST(MemoryNeed, AJobThatCannotFitIsRefusedWithNumbersAndAdvice) {
  JobSpec job = SmallJob();
  const size_t needed = Compiled(job).compiled.need.total();
  job.mutable_resources()->set_memory(static_cast<int64_t>(needed));
  const JobData data = OpenJobData(job).value();
  EXPECT_TRUE(CompileJob(job, data).ok());
  job.mutable_resources()->set_memory(static_cast<int64_t>(needed) - 1);
  const auto refused = CompileJob(job, data);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.status().message());
  EXPECT_THAT(message, HasSubstr(BytesText(static_cast<double>(needed))));
  EXPECT_THAT(message, HasSubstr("resources.memory"));
  job.mutable_resources()->set_memory(1000);
  EXPECT_THAT(std::string(CompileJob(job, data).status().message()), HasSubstr("smaller model"));
  job.mutable_train()->mutable_model()->mutable_mlp()->clear_hidden();
  job.mutable_train()->set_global_batch(4096);
  job.mutable_resources()->set_memory(100000);
  const std::string batches(CompileJob(job, data).status().message());
  EXPECT_THAT(batches, HasSubstr("lower train.data.loader.prefetch"));
  EXPECT_THAT(batches, HasSubstr("lower train.global_batch"));
  // Fewer than two are not prepared.
  job.mutable_train()->mutable_data()->mutable_loader()->set_prefetch(2);
  const std::string fewest(CompileJob(job, data).status().message());
  EXPECT_THAT(fewest, testing::Not(HasSubstr("train.data.loader.prefetch")));
  EXPECT_THAT(fewest, HasSubstr("lower train.global_batch"));
}

// A table of numbers, which every worker reads for itself.
TEST(MemoryNeed, CountsWhatOfTheDataIsReadIntoMemory) {
  std::string folder = testing::TempDir() + "table-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto write = [&](const std::string& name, int lines) {
    std::ofstream file(folder + "/" + name);
    for (int i = 0; i < lines; ++i) file << "0.5,0.25," << i % 5 << "\n";
    return folder + "/" + name;
  };
  JobSpec job = SmallJob();
  Csv& csv = *job.mutable_train()->mutable_data()->mutable_csv();
  csv.set_train(write("train.csv", 100'000));
  csv.set_test(write("test.csv", 20'000));
  job.mutable_train()->mutable_eval()->set_every("never");
  const Compiled one(job);
  job.mutable_train()->mutable_eval()->clear_every();
  const Compiled both(job);
  constexpr size_t kSample = 2 * 4 + 4;
  EXPECT_GE(one.compiled.need.data, 100'000 * kSample);
  EXPECT_LT(one.compiled.need.data, 150'000 * kSample);
  EXPECT_GE(both.compiled.need.data, one.compiled.need.data + 20'000 * kSample);
  job.mutable_resources()->set_memory(500'000);
  const std::string refused(CompileJob(job, both.data).status().message());
  EXPECT_THAT(refused, HasSubstr("files that are mapped"));
  EXPECT_THAT(refused, testing::Not(HasSubstr("prefetch")));
}

TEST(OpenJobData, SplitsOfOtherExtentsAreRefused) {
  std::string folder = testing::TempDir() + "splits-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto write = [&](const std::string& name, const std::string& header, size_t values) {
    std::ofstream(folder + "/" + name) << header << std::string(values, '\0');
    return folder + "/" + name;
  };
  const std::string labels("\0\0\x08\x01\0\0\0\x04", 8);
  const std::string three("\0\0\x08\x03\0\0\0\x04\0\0\0\x03\0\0\0\x03", 16);
  const std::string two("\0\0\x08\x03\0\0\0\x04\0\0\0\x02\0\0\0\x02", 16);
  JobSpec job = SmallJob();
  Idx& data = *job.mutable_train()->mutable_data()->mutable_idx();
  data.set_train_images(write("train", three, 36));
  data.set_train_labels(write("labels", labels, 4));
  data.set_test_labels(data.train_labels());
  data.set_test_images(data.train_images());
  data.set_std(1);
  EXPECT_TRUE(OpenJobData(job).ok());
  data.set_test_images(write("test", two, 16));
  EXPECT_THAT(std::string(OpenJobData(job).status().message()),
              HasSubstr("training split has samples of inputs[1,3,3], labels[], but the test split "
                        "has inputs[1,2,2], labels[]"));
  job.mutable_train()->mutable_eval()->set_every("never");
  EXPECT_TRUE(OpenJobData(job).ok());
  std::filesystem::remove_all(folder);
}

TEST(JobReport, CountsRanksFlopsAndBytes) {
  const Compiled job(SmallJob());
  const MachineSpeed machine{1e9, 1e9, 2};
  const JobReport report = ReportOf(job.compiled, job.data.train->size(), machine);
  ASSERT_EQ(report.ranks.size(), 2u);
  EXPECT_EQ(report.ranks[0].shards, 2);
  EXPECT_DOUBLE_EQ(report.flops, 4 * job.compiled.plan->flops());
  // Each of two ranks takes its half of the other's one node, and the other half of the sums.
  EXPECT_NEAR(report.ranks[0].bytes_in, static_cast<double>(job.compiled.vector_count) * 4, 128);
  EXPECT_GT(report.ranks[0].step_seconds, report.ranks[0].flops / 1e9);
  EXPECT_THAT(ReportText(report), HasSubstr("activations"));
  EXPECT_THAT(ReportJson(report), HasSubstr("\"parameters\":2949,"));
}

TEST(JobReport, WarnsOfADumpOfStepsThatTheRunHasNot) {
  JobSpec spec = SmallJob();
  const auto text = [&] {
    const Compiled job(spec);
    return ReportText(ReportOf(job.compiled, job.data.train->size(), {1e9, 1e9, 2}));
  };
  spec.mutable_debug()->set_steps("5000:6000");
  EXPECT_THAT(text(), Not(HasSubstr("debug.steps"))) << "nothing is dumped anyway";
  spec.mutable_debug()->set_dump_tensors("d");
  EXPECT_THAT(text(),
              HasSubstr("'debug.steps': 5000:6000 dumps nothing, as the run's last step is "));
  spec.mutable_debug()->set_steps("1:6000");
  EXPECT_THAT(text(), Not(HasSubstr("debug.steps")));
}

TEST(JobReport, WarnsOfAScheduleThatIsLongerThanTheRun) {
  JobSpec spec = SmallJob();
  StepSchedule& steps = *spec.mutable_train()->mutable_schedule()->mutable_step();
  steps.set_gamma(0.1);
  steps.add_milestones(50000);
  const Compiled job(spec);
  const JobReport report = ReportOf(job.compiled, job.data.train->size(), {1e9, 1e9, 2});
  EXPECT_THAT(ReportText(report),
              HasSubstr("warning       'train.schedule.step.milestones': 50000 changes nothing"));
  EXPECT_THAT(ReportJson(report), HasSubstr("\"warnings\":[\"'train.schedule.step.milestones'"));
}

TEST(JobReport, WarnsOfAMuonThatTrainsNothing) {
  JobSpec spec = SmallJob();
  Muon& muon = *spec.mutable_train()->mutable_optimizer()->mutable_muon();
  muon.set_lr(0.02);
  muon.set_momentum(0.95);
  muon.set_ns_steps(5);
  MuonRest& adamw = *muon.mutable_adamw();
  adamw.set_lr(3e-4);
  adamw.set_beta1(0.9);
  adamw.set_beta2(0.99);
  adamw.set_eps(1e-8);
  const auto warnings = [&] {
    const Compiled job(spec);
    return ReportOf(job.compiled, job.data.train->size(), {1e9, 1e9, 2}).warnings;
  };
  EXPECT_THAT(warnings(), testing::IsEmpty());
  spec.mutable_train()->mutable_model()->mutable_mlp()->clear_hidden();
  EXPECT_THAT(warnings(),
              testing::ElementsAre(HasSubstr("'train.optimizer.muon': there is no hidden matrix")));
}

}  // namespace
}  // namespace lockstep::worker
