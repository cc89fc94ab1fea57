// SPDX-License-Identifier: Apache-2.0
// The profiler, its report and trace, and the interpreter.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "data/npy.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "worker/profile/interpreter.h"
#include "worker/profile/profile_report.h"
#include "worker/profile/step_profiler.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RankProfile Made(int rank, int64_t data_wait, int64_t compute, int64_t reduce) {
  RankProfile profile;
  profile.set_rank(rank);
  profile.set_host("a \"host\"");
  profile.set_threads(1);
  profile.set_steps(10);
  profile.set_step_nanos(1000000);
  profile.set_arena_bytes(4096);
  const auto add = [&](const char* name, int64_t nanos) {
    PhaseTime* phase = profile.add_phases();
    phase->set_name(name);
    phase->set_calls(10);
    phase->set_nanos(nanos);
  };
  add("data wait", data_wait);
  add("compute", compute);
  add("reduce", reduce);
  for (const int64_t nanos : {compute / 4, compute / 2}) {
    NodeTime* node = profile.add_nodes();
    node->set_op("linear");
    node->set_name(nanos == compute / 2 ? "slow" : "quick");
    node->set_text(node->name());
    node->set_calls(nanos == compute / 2 ? 10 : 20);
    node->set_nanos(nanos);
    node->set_flops(1000);
  }
  for (int lane = 0; lane < 4; ++lane) {
    TraceEvent* event = profile.add_events();
    event->set_name("e\n");
    event->set_lane(lane);
    event->set_begin(5000000 + lane * 1000);
    event->set_nanos(500);
    event->set_step(3);
  }
  return profile;
}

google::protobuf::Struct Parse(const std::string& json) {
  google::protobuf::Struct parsed;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &parsed);
  EXPECT_TRUE(status.ok()) << status.ToString() << json;
  return parsed;
}

TEST(ProfileReport, TheVerdictNamesWhatHoldsTheStep) {
  const Peak peak{1e11, 1e10};
  EXPECT_THAT(ProfileVerdict({Made(0, 380000, 600000, 20000)}, peak),
              HasSubstr("the loader holds the step for 38 % of the time"));
  EXPECT_THAT(ProfileVerdict({Made(0, 10000, 500000, 450000)}, peak),
              HasSubstr("sums for 45 % of the time"));
  EXPECT_THAT(ProfileVerdict({Made(0, 10000, 950000, 10000)}, peak),
              HasSubstr("computes 95 % of the time; the most of it is linear slow"));
  EXPECT_THAT(ProfileVerdict({}, peak), HasSubstr("no step was measured"));
}

TEST(ProfileReport, TheTableIsSortedAndAddsUpOverTheRanks) {
  const std::vector<RankProfile> ranks = {Made(0, 1, 800000, 1), Made(1, 1, 800000, 1)};
  const Peak peak{1e11, 1e10};
  const std::string by_total = ProfileText(ranks, peak, "total");
  EXPECT_LT(by_total.find("linear slow"), by_total.find("linear quick"));
  const std::string by_calls = ProfileText(ranks, peak, "calls");
  EXPECT_GT(by_calls.rfind("linear slow"), by_calls.rfind("linear quick"));
  EXPECT_THAT(by_total, HasSubstr("100.0 GFLOP/s and 10.0 GB/s on one thread"));
  EXPECT_THAT(by_total, Not(HasSubstr("not in the run's folder")));
  const auto json = Parse(ProfileJson(ranks, peak, "total"));
  const auto& rows = json.fields().at("rows").list_value();
  const auto number = [&](int row, const char* name) {
    return rows.values(row).struct_value().fields().at(name).number_value();
  };
  EXPECT_DOUBLE_EQ(number(0, "total_seconds"), 2e-3);   // the step
  EXPECT_DOUBLE_EQ(number(2, "total_seconds"), 16e-4);  // compute
  EXPECT_NEAR(number(2, "self_seconds"), 4e-4, 1e-9);   // what no node took
  EXPECT_DOUBLE_EQ(number(4, "calls"), 20);
  EXPECT_DOUBLE_EQ(number(4, "flops_per_second"), 20 * 1000 / 8e-4);
  EXPECT_NEAR(number(4, "percent_of_peak"), 100 * (20 * 1000 / 8e-4) / 1e11, 1e-9);
}

TEST(ProfileReport, WhatIsNotKnownIsSaidOrLeftOut) {
  const Peak peak{1e11, 0};
  const std::vector<RankProfile> ranks = {Made(0, 1, 800000, 1)};
  const std::string text = ProfileText(ranks, peak, "total", /*missing=*/{1, 3});
  EXPECT_THAT(text, HasSubstr("100.0 GFLOP/s on one thread"));
  EXPECT_THAT(text, HasSubstr("what these ranks measured is not in the run's folder: 1, 3\n"));
  const auto json = Parse(ProfileJson(ranks, peak, "total", /*missing=*/{1, 3}));
  EXPECT_EQ(json.fields().count("peak_bytes_per_second"), 0u);
  EXPECT_EQ(json.fields().at("missing_ranks").list_value().values_size(), 2);
}

// Each host's monotonic clock begins with it.
TEST(ProfileReport, TheTraceHasHostsBesideEachOther) {
  RankProfile first = Made(0, 1, 2, 3), second = Made(1, 1, 2, 3);
  constexpr int64_t kDay = int64_t{86400} * 1'000'000'000;
  first.set_clock_offset(kDay);
  second.set_clock_offset(3 * kDay);
  for (TraceEvent& event : *second.mutable_events())
    event.set_begin(event.begin() - 2 * kDay + 250);
  const auto trace = Parse(TraceJson({first, second}));
  const auto& events = trace.fields().at("traceEvents").list_value();
  std::vector<double> begins[2];
  for (const auto& value : events.values()) {
    const auto& fields = value.struct_value().fields();
    if (fields.at("ph").string_value() != "X") continue;
    begins[static_cast<int>(fields.at("pid").number_value())].push_back(
        fields.at("ts").number_value());
  }
  EXPECT_THAT(begins[0], ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(begins[1], ::testing::ElementsAre(0.25, 1.25, 2.25, 3.25));
}

// As in the folder of --run-dir.
TEST(ProfileReport, WhatAnotherJobMeasuredInTheFolderIsNotThisOnes) {
  std::string run_dir = testing::TempDir() + "profiles-XXXXXX";
  ASSERT_NE(::mkdtemp(run_dir.data()), nullptr);
  for (const int rank : {0, 1, 2}) {
    RankProfile profile = Made(rank, 1, 2, 3);
    profile.set_job(rank == 1 ? "old" : "new");
    ASSERT_TRUE(WriteRankProfile(run_dir, profile).ok());
  }
  const RunProfile run = ReadProfiles(run_dir, "new", /*world=*/4);
  std::filesystem::remove_all(run_dir);
  ASSERT_EQ(run.ranks.size(), 2u);
  EXPECT_EQ(run.ranks[1].rank(), 2);
  EXPECT_THAT(run.missing, ::testing::ElementsAre(1, 3));
}

TEST(ProfileReport, TheTraceIsValidJsonWithALaneForEachThread) {
  const auto trace = Parse(TraceJson({Made(0, 1, 2, 3), Made(1, 1, 2, 3)}));
  const auto& events = trace.fields().at("traceEvents").list_value();
  int complete = 0, lanes = 0, processes = 0;
  for (const auto& value : events.values()) {
    const auto& fields = value.struct_value().fields();
    const std::string& kind = fields.at("ph").string_value();
    const std::string& name = fields.at("name").string_value();
    processes += name == "process_name";
    lanes += name == "thread_name";
    if (kind != "X") continue;
    ++complete;
    EXPECT_GE(fields.at("ts").number_value(), 0);
    EXPECT_DOUBLE_EQ(fields.at("dur").number_value(), 0.5);
  }
  EXPECT_EQ(complete, 8);
  EXPECT_EQ(processes, 2);
  EXPECT_EQ(lanes, 8);  // compute, communication, two data threads, twice
}

TEST(StepProfiler, MeasuresItsStepsAlone) {
  engine::Job job(engine::SmallMlp());
  StepProfiler profiler(job.plan.get(), *StepRange::Parse("2:3"));
  engine::Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
  for (int64_t step = 1; step <= 5; ++step) {
    profiler.BeginStep(step, job.executor.get());
    EXPECT_EQ(profiler.active(), step == 2 || step == 3);
    {
      const PhaseTimer computing(&profiler, StepPhase::kCompute);
      ASSERT_TRUE(job.RunShard(step, 0, gradients.floats()).ok());
      if (profiler.active()) {
        const int64_t now = MonotonicNanos();
        profiler.RecordPhase(StepPhase::kCommitWait, now - 1000000000, now);
      }
    }
    profiler.RecordBatch(0, step, 100, 200);
    profiler.EndStep();
  }
  const RankProfile result = profiler.Result(7, "job");
  EXPECT_EQ(result.rank(), 7);
  EXPECT_EQ(result.job(), "job");
  EXPECT_NE(result.clock_offset(), 0);
  EXPECT_EQ(result.steps(), 2);
  int runs = 0;
  for (const engine::NodeInfo& node : job.plan->Nodes(engine::ProgramKind::kTraining)) {
    runs += node.runs;
  }
  ASSERT_EQ(result.nodes_size(), runs);
  for (const NodeTime& node : result.nodes()) EXPECT_EQ(node.calls(), 2) << node.text();
  EXPECT_EQ(result.phases(1).name(), "compute");
  EXPECT_EQ(result.phases(1).calls(), 2);
  EXPECT_LT(result.phases(1).nanos(), 0);  // the made wait of two seconds is taken off it
  int batches = 0;
  for (const TraceEvent& event : result.events()) batches += event.lane() == 2;
  EXPECT_EQ(batches, 2);
}

// A generation ends in the middle of a step, which is made again.
TEST(StepProfiler, AStepThatIsBrokenOffCountsForNothing) {
  engine::Job job(engine::SmallMlp());
  StepProfiler profiler(job.plan.get(), *StepRange::Parse("1:9"));
  engine::Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
  const auto compute = [&](int64_t step) {
    profiler.BeginStep(step, job.executor.get());
    ASSERT_TRUE(job.RunShard(step, 0, gradients.floats()).ok());
    profiler.RecordPhase(StepPhase::kCompute, 100, 200);
  };
  compute(1);
  profiler.EndStep();
  for (int i = 0; i < 3; ++i) compute(2);
  profiler.EndStep();
  compute(3);
  const RankProfile result = profiler.Result(0, "job");
  EXPECT_EQ(result.steps(), 2);
  EXPECT_EQ(result.phases(1).calls(), 2);
  EXPECT_EQ(result.phases(1).nanos(), 200);
  for (const NodeTime& node : result.nodes()) EXPECT_EQ(node.calls(), 2) << node.text();
  int computed = 0;
  for (const TraceEvent& event : result.events()) computed += event.name() == "compute";
  EXPECT_EQ(computed, 2);
  EXPECT_EQ(result.events_size(), 2 * (1 + result.nodes_size()));
}

// Where the next batch is copied to a device while this one is computed.
TEST(StepProfiler, WaitsInsideAComputationAreNoPartOfIt) {
  engine::Job job(engine::SmallMlp());
  StepProfiler profiler(job.plan.get(), *StepRange::Parse("1:1"));
  profiler.BeginStep(1, job.executor.get());
  profiler.RecordPhase(StepPhase::kDataWait, 0, 100);  // before it
  profiler.RecordPhase(StepPhase::kDataWait, 150, 180);
  profiler.RecordPhase(StepPhase::kCommitWait, 180, 185);
  profiler.RecordPhase(StepPhase::kCompute, 100, 300);
  profiler.RecordPhase(StepPhase::kCompute, 300, 400);
  profiler.EndStep();
  const RankProfile result = profiler.Result(0, "job");
  EXPECT_EQ(result.phases(0).nanos(), 130);
  EXPECT_EQ(result.phases(1).nanos(), 200 - 35 + 100);
  EXPECT_EQ(result.phases(2).nanos(), 5);
}

TEST(StepProfiler, ATimerWithoutAProfilerDoesNothing) {
  PhaseTimer timer(nullptr, StepPhase::kUpdate);
  timer.Stop();
}

class InterpreterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "dump-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(InterpreterTest, NamesTheNodeThatMakesNan) {
  engine::Job job(engine::SmallMlp());
  Interpreter interpreter(job.plan.get(), "", {});
  job.executor->Observe(&interpreter);
  engine::Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
  interpreter.Enter(4, 0, 0);
  ASSERT_TRUE(job.RunShard(4, 0, gradients.floats()).ok());
  // The second layer's bias: the first layer is clean.
  for (const engine::StateEntry& entry : job.plan->state()) {
    if (entry.name != "2.bias") continue;
    auto* state = static_cast<char*>(job.executor->BeginLoad());
    *reinterpret_cast<float*>(state + entry.offset) = std::numeric_limits<float>::infinity();
    job.executor->EndLoad();
  }
  const absl::Status status = job.RunShard(4, 0, gradients.floats());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'2' linear("));
  EXPECT_THAT(std::string(status.message()), HasSubstr("made inf at element 0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in step 4, shard 0"));
}

TEST_F(InterpreterTest, AnOverflowOfAScaledLossIsNoFault) {
  engine::TrainSpec spec = engine::SmallMlp();
  spec.precision = "fp16";
  spec.loss_scale.init = 16777216.0 * 1024;
  engine::Job job(spec);
  Interpreter interpreter(job.plan.get(), folder_, *StepRange::Parse("1:1"));
  job.executor->Observe(&interpreter);
  engine::Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
  ::testing::internal::CaptureStderr();
  for (const int shard : {0, 1}) {
    interpreter.Enter(1, shard, 0, spec.loss_scale.init);
    EXPECT_TRUE(job.RunShard(1, shard, gradients.floats()).ok());
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("in step 1, shard 0, micro-batch 0: an overflow at a loss scale of "));
  EXPECT_THAT(log, Not(HasSubstr("shard 1"))) << "once a step";
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/step-1/shard-1/micro-0"));
  // At 1 there is no scale to blame.
  interpreter.Enter(2, 0, 0, 1);
  EXPECT_THAT(std::string(job.RunShard(2, 0, gradients.floats()).message()),
              HasSubstr("in step 2, shard 0"));
  // Nor is it the doing of any scale what the forward pass makes.
  for (const engine::StateEntry& entry : job.plan->state()) {
    if (entry.name != "2.bias") continue;
    auto* state = static_cast<char*>(job.executor->BeginLoad());
    *reinterpret_cast<float*>(state + entry.offset) = std::numeric_limits<float>::infinity();
    job.executor->EndLoad();
  }
  interpreter.Enter(3, 0, 0, spec.loss_scale.init);
  EXPECT_THAT(std::string(job.RunShard(3, 0, gradients.floats()).message()),
              HasSubstr("'2' linear("));
}

TEST_F(InterpreterTest, WritesTheValuesOfItsSteps) {
  engine::Job job(engine::SmallMlp());
  Interpreter interpreter(job.plan.get(), folder_, *StepRange::Parse("2:2"));
  job.executor->Observe(&interpreter);
  engine::Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
  for (const int64_t step : {1, 2}) {
    interpreter.Enter(step, 3, 0);
    ASSERT_TRUE(job.RunShard(step, 3, gradients.floats()).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-1"));
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_ + "/step-2/shard-3/micro-0")) {
    const auto array = data::NpyArray::Open(entry.path());
    ASSERT_TRUE(array.ok()) << array.status();
    ++files;
    if (entry.path().filename().string().find("linear-0.0.npy") == std::string::npos) continue;
    EXPECT_THAT((*array)->shape(), ::testing::ElementsAre(16, 33));
  }
  EXPECT_GT(files, 5);
}

}  // namespace
}  // namespace lockstep::worker
