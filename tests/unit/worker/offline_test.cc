// SPDX-License-Identifier: Apache-2.0
// What a job needs and costs, saved models.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "data/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/commands/answers.h"
#include "worker/commands/job_report.h"
#include "worker/commands/saved_model.h"
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
  EXPECT_EQ(by_nccl.need.gpu.vectors, (buffers + 1) * vector);
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

class SavedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "model-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  // The model of that job as it begins.
  void WriteUntrained(const JobSpec& spec) {
    const Compiled job(spec);
    const AlignedMemory state = AllocateAligned(job.compiled.plan->state_bytes());
    const AlignedMemory arena = AllocateAligned(job.compiled.plan->arena_bytes());
    const auto executor =
        engine::Executor::Create(job.compiled.plan, {state.get(), arena.get()}).value();
    executor->InitState();
    ASSERT_TRUE(
        WriteModel(folder_, spec, *job.compiled.plan, state.get(), job.data.train->origin()).ok());
  }
  std::string folder_;
};

TEST_F(SavedModelTest, IsBuiltAgainFromItsFolder) {
  const JobSpec spec = SmallJob();
  const Compiled job(spec);
  const AlignedMemory state = AllocateAligned(job.compiled.plan->state_bytes());
  const AlignedMemory arena = AllocateAligned(job.compiled.plan->arena_bytes());
  const auto executor =
      engine::Executor::Create(job.compiled.plan, {state.get(), arena.get()}).value();
  executor->InitState();
  ASSERT_TRUE(
      WriteModel(folder_, spec, *job.compiled.plan, state.get(), job.data.train->origin()).ok());

  const auto model = SavedModel::Open(folder_, 1, "", 50);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().classes(), 5);
  EXPECT_EQ((*model)->config().data().synthetic().features(), 40);
  int64_t samples = 0;
  ASSERT_TRUE(
      (*model)
          ->ForEachBlock(*job.data.test,
                         [&](const BlockReader::Block& block, const auto&) {
                           EXPECT_EQ(block.first, samples);
                           engine::EvalSums a, b;
                           EXPECT_TRUE(
                               (*model)->executor()->Evaluate(block.fields, block.valid, &a).ok());
                           EXPECT_TRUE(executor->Evaluate(block.fields, block.valid, &b).ok());
                           EXPECT_EQ(a.loss, b.loss);
                           EXPECT_EQ(a.correct, b.correct);
                           samples += block.valid;
                           return absl::OkStatus();
                         })
          .ok());
  EXPECT_EQ(samples, 130);
  const auto same = SavedModel::Open(folder_ + "/model.safetensors", 1, "cpu", 0);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ((*same)->plan().spec().eval_block, 50);  // that of the training
}

// They decide the last bits of what it computes.
TEST_F(SavedModelTest, IsComputedWithTheJobsPasses) {
  JobSpec spec = SmallJob();
  spec.mutable_train()->mutable_passes()->set_fuse(false);
  spec.mutable_train()->mutable_passes()->set_fuse_norms(false);
  WriteUntrained(spec);
  const auto model = SavedModel::Open(folder_, 1, "", 50);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE((*model)->plan().spec().passes.fuse);
  EXPECT_FALSE((*model)->plan().spec().passes.patterns.norms);
  EXPECT_TRUE((*model)->plan().spec().passes.patterns.loss);
}

TEST_F(SavedModelTest, AnInputThatIsNotFiniteIsNamed) {
  WriteUntrained(SmallJob());
  PredictRequest request;
  request.set_model(folder_);
  request.set_threads(1);
  request.set_inputs(folder_ + "/in.npy");
  request.set_out(folder_ + "/out.jsonl");
  std::vector<float> inputs(3 * 40, 0.5F);
  const auto predict = [&] {
    std::ofstream(request.inputs())
        << data::FormatNpyHeader(data::NpyType::kFloat32, {3, 40})
        << std::string(reinterpret_cast<const char*>(inputs.data()), 4 * inputs.size());
    return AnswerPredict(request);
  };
  const absl::Status good = predict();
  EXPECT_TRUE(good.ok()) << good;
  inputs[2 * 40 + 7] = std::numeric_limits<float>::quiet_NaN();
  const absl::Status bad = predict();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("in.npy: sample 2, counted from 0, has"));
}

TEST_F(SavedModelTest, SaysWhatIsMissingOrWrong) {
  EXPECT_EQ(SavedModel::Open(folder_, 1, "", 50).status().code(), absl::StatusCode::kNotFound);
  WriteUntrained(SmallJob());
  std::string config;
  {
    std::ifstream file(folder_ + "/config.json");
    std::getline(file, config);
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    std::ofstream(folder_ + "/config.json") << changed;
    return SavedModel::Open(folder_, 1, "", 50).status();
  };
  EXPECT_EQ(with("\"hidden\":[64]", "\"hidden\":[65]").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with("lockstep", "other").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with("{", "[").code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(with("lockstep", "lockstep").ok());
  // A run's folder is not its model.
  std::filesystem::create_directories(folder_ + "/run/model");
  EXPECT_THAT(std::string(SavedModel::Open(folder_ + "/run", 1, "", 50).status().message()),
              HasSubstr("its model is " + folder_ + "/run/model"));
  Data data;
  data.mutable_synthetic()->set_features(41);
  const auto model = SavedModel::Open(folder_, 1, "", 50);
  const auto other = OpenTestSplit(data, 0, "");
  EXPECT_EQ((*model)->CheckFits(**other).code(), absl::StatusCode::kInvalidArgument);
}

// A model of two numbers, and inputs in files of each kind.
class InputsTest : public SavedModelTest {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  template <typename T>
  std::string WriteNpy(const std::string& name, data::NpyType type,
                       const std::vector<int64_t>& shape, const std::vector<T>& values) {
    const auto* const bytes = reinterpret_cast<const char*>(values.data());
    return Write(
        name, data::FormatNpyHeader(type, shape) + std::string(bytes, values.size() * sizeof(T)));
  }
  std::string Labels(const std::string& name) {
    return WriteNpy<int64_t>(name, data::NpyType::kInt64, {3}, {0, 1, 2});
  }
  // The same three samples in each type.
  std::vector<std::string> Inputs() {
    return {WriteNpy<uint8_t>("u8.npy", data::NpyType::kUInt8, {3, 2}, {1, 200, 30, 4, 5, 60}),
            WriteNpy<int32_t>("i32.npy", data::NpyType::kInt32, {3, 2}, {1, 200, 30, 4, 5, 60}),
            WriteNpy<int64_t>("i64.npy", data::NpyType::kInt64, {3, 2}, {1, 200, 30, 4, 5, 60}),
            WriteNpy<float>("f32.npy", data::NpyType::kFloat32, {3, 2}, {1, 200, 30, 4, 5, 60}),
            WriteNpy<double>("f64.npy", data::NpyType::kFloat64, {3, 2}, {1, 200, 30, 4, 5, 60}),
            Write("u8-idx2-ubyte",
                  std::string("\0\0\x8\x2\0\0\0\x3\0\0\0\x2", 12) + "\x1\xc8\x1e\x4\x5\x3c")};
  }
  JobSpec Job() {
    JobSpec job = SmallJob();
    job.mutable_train()->clear_data();
    job.mutable_train()->set_global_batch(4);
    return job;
  }
  JobSpec TableJob(const std::string& name, const std::string& header) {
    JobSpec job = Job();
    Csv& csv = *job.mutable_train()->mutable_data()->mutable_csv();
    csv.set_train(Write(name, header + "\n1,200,0\n30,4,1\n5,60,2\n"));
    csv.set_test(csv.train());
    return job;
  }
  JobSpec ArrayJob(const std::string& inputs) {
    JobSpec job = Job();
    Npy& npy = *job.mutable_train()->mutable_data()->mutable_npy();
    npy.set_train_inputs(inputs);
    npy.set_test_inputs(inputs);
    npy.set_train_labels(Labels("y.npy"));
    npy.set_test_labels(npy.train_labels());
    return job;
  }
  std::string Predictions(const std::string& inputs) {
    PredictRequest request;
    request.set_model(folder_);
    request.set_inputs(inputs);
    request.set_out(folder_ + "/out.jsonl");
    request.set_probabilities(true);
    const absl::Status status = AnswerPredict(request);
    if (!status.ok()) return std::string(status.message());
    std::ifstream file(request.out());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // What eval says of the model on the test split of `data`, but for the time; or its error.
  std::string Evaluation(const JobSpec& data) {
    EvalRequest request;
    request.set_model(folder_);
    *request.mutable_data() = data;
    testing::internal::CaptureStdout();
    const absl::Status status = AnswerEval(request, /*json=*/true);
    const std::string text = testing::internal::GetCapturedStdout();
    return status.ok() ? text.substr(0, text.find("\"seconds\"")) : std::string(status.message());
  }
};

TEST_F(InputsTest, BytesAreNumbersWhereTheModelLearntFromNumbers) {
  const std::vector<std::string> inputs = Inputs();
  for (const JobSpec& job : {TableJob("t.csv", "a,b,label"), ArrayJob(folder_ + "/i64.npy")}) {
    WriteUntrained(job);
    const std::string expected = Predictions(inputs[4]);
    ASSERT_THAT(expected, HasSubstr("\"index\":2"));
    const std::string evaluated = Evaluation(ArrayJob(inputs[4]));
    ASSERT_THAT(evaluated, HasSubstr("\"samples\":3"));
    for (const std::string& file : inputs) {
      EXPECT_EQ(Predictions(file), expected) << file;
      if (file.ends_with(".npy")) EXPECT_EQ(Evaluation(ArrayJob(file)), evaluated) << file;
    }
  }
  // Those of a model that learnt from bytes are pixels, as before.
  WriteUntrained(ArrayJob(inputs[0]));
  const std::string pixels = Predictions(inputs[0]);
  EXPECT_NE(pixels, Predictions(inputs[4]));
  std::vector<double> shares;
  for (const double value : {1, 200, 30, 4, 5, 60}) shares.push_back(value / 255);
  EXPECT_EQ(Predictions(inputs[5]), pixels);
  const auto labels = [](const std::string& lines) { return lines.substr(0, 20); };
  EXPECT_EQ(labels(Predictions(WriteNpy("s.npy", data::NpyType::kFloat64, {3, 2}, shares))),
            labels(pixels));
}

TEST_F(InputsTest, ColumnsOfATableStandAsThoseThatTheModelLearntFrom) {
  const JobSpec trained = TableJob("t.csv", "a,b,label");
  WriteUntrained(trained);
  ASSERT_THAT(Evaluation(trained), HasSubstr("\"samples\":3"));
  EXPECT_EQ(Evaluation(TableJob("unnamed.csv", "")).find("columns"), std::string::npos);
  EXPECT_THAT(Evaluation(TableJob("other.csv", "b,a,label")),
              HasSubstr("the columns of the data are b, a, but the model takes a, b"));
  JobSpec named = TableJob("name.csv", "a,b,target");
  EXPECT_THAT(Evaluation(named), HasSubstr("\"samples\":3"));
}

TEST_F(InputsTest, WhatIsNoFileOfInputsIsSaid) {
  WriteUntrained(TableJob("t.csv", "a,b,label"));
  EXPECT_THAT(Predictions(folder_ + "/t.csv"),
              AllOf(HasSubstr("t.csv"), HasSubstr("inputs are a .npy or an IDX file; a table goes "
                                                  "with --data JOB.yaml")));
}

}  // namespace
}  // namespace lockstep::worker
