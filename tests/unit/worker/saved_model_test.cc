// SPDX-License-Identifier: Apache-2.0
// Saved models, and what is asked of them.
#include "worker/commands/saved_model.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "data/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/commands/answers.h"

namespace lockstep::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SavedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "model-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  // A job as it begins, and its model in the folder.
  struct Untrained {
    explicit Untrained(const JobSpec& spec) : job(spec) { executor->InitState(); }
    Compiled job;
    AlignedMemory state = AllocateAligned(job.compiled.plan->state_bytes());
    AlignedMemory arena = AllocateAligned(job.compiled.plan->arena_bytes());
    std::unique_ptr<engine::Executor> executor =
        engine::Executor::Create(job.compiled.plan, {state.get(), arena.get()}).value();
  };
  std::unique_ptr<Untrained> WriteUntrained(const JobSpec& spec) {
    auto made = std::make_unique<Untrained>(spec);
    const Compiled& job = made->job;
    EXPECT_TRUE(
        WriteModel(folder_, spec, *job.compiled.plan, made->state.get(), job.data.train->origin())
            .ok());
    return made;
  }
  std::string folder_;
};

TEST_F(SavedModelTest, IsBuiltAgainFromItsFolder) {
  const auto made = WriteUntrained(SmallJob());
  const Compiled& job = made->job;
  engine::Executor* const executor = made->executor.get();

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

// Both of the largest logits have a probability of a half, in fp32.
TEST_F(SavedModelTest, TheLabelIsThatOfTheLargestLogit) {
  const JobSpec spec = SmallJob();
  const Compiled job(spec);
  const engine::Plan& plan = *job.compiled.plan;
  const AlignedMemory state = AllocateAligned(plan.state_bytes());
  std::memset(state.get(), 0, plan.state_bytes());
  float second = 0.1F;
  for (int i = 0; i < 2; ++i) second = std::nextafter(second, 1.0F);
  const std::vector<float> logits = {0.1F, second, -100, -100, -100};
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role != engine::StateEntry::Role::kParameter) continue;
    if (entry.bytes != logits.size() * sizeof(float)) continue;
    std::memcpy(static_cast<char*>(state.get()) + entry.offset, logits.data(), entry.bytes);
  }
  ASSERT_TRUE(WriteModel(folder_, spec, plan, state.get(), job.data.train->origin()).ok());
  PredictRequest request;
  request.set_model(folder_);
  request.set_out(folder_ + "/out.jsonl");
  const absl::Status answered = AnswerPredict(request);
  ASSERT_TRUE(answered.ok()) << answered;
  std::ifstream file(request.out());
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_THAT(line, HasSubstr("\"label\":1,\"probability\":0.5"));
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
  JobSpec wider;
  wider.mutable_train()->mutable_data()->mutable_synthetic()->set_features(41);
  const auto model = SavedModel::Open(folder_, 1, "", 50);
  const auto other = (*model)->OpenTestSplit(&wider);
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

// Their units are others: the model divides bytes by 255.
TEST_F(InputsTest, NumbersAreNoTestSplitOfAModelThatLearntFromBytes) {
  const std::vector<std::string> inputs = Inputs();
  WriteUntrained(ArrayJob(inputs[0]));
  JobSpec mixed = ArrayJob(inputs[0]);
  mixed.mutable_train()->mutable_data()->mutable_npy()->set_test_inputs(inputs[3]);
  const char* const refused =
      "the inputs of the test split are float32, and the model learnt from "
      "uint8, which are divided by 255: save them as uint8";
  EXPECT_THAT(Evaluation(mixed), HasSubstr(refused));
  EXPECT_THAT(Evaluation(ArrayJob(inputs[3])), HasSubstr(refused));
  PredictRequest request;
  request.set_model(folder_);
  *request.mutable_data() = mixed;
  request.set_out(folder_ + "/out.jsonl");
  EXPECT_THAT(std::string(AnswerPredict(request).message()), HasSubstr(refused));
  // The training split's inputs are asked for nothing.
  Npy& npy = *mixed.mutable_train()->mutable_data()->mutable_npy();
  npy.set_test_inputs(inputs[0]);
  npy.set_train_inputs(Write("broken.npy", "no array"));
  EXPECT_THAT(Evaluation(mixed), HasSubstr("\"samples\":3"));
  // But for a model of an older version, which does not say what it learnt from.
  std::stringstream config;
  config << std::ifstream(folder_ + "/config.json").rdbuf();
  std::string older = config.str();
  const std::string said = ",\"input_type\":\"uint8\"";
  ASSERT_THAT(older, HasSubstr(said));
  Write("config.json", older.replace(older.find(said), said.size(), ""));
  npy.set_train_inputs(inputs[0]);
  EXPECT_THAT(Evaluation(mixed), HasSubstr("\"samples\":3"));
  npy.set_test_inputs(inputs[3]);
  EXPECT_THAT(Evaluation(mixed), HasSubstr("u8.npy is uint8 and " + inputs[3] + " float32"));
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

TEST_F(InputsTest, AnswersAreNotWrittenOverTheData) {
  const std::string inputs = Inputs()[3];
  WriteUntrained(ArrayJob(inputs));
  PredictRequest request;
  request.set_model(folder_);
  std::filesystem::create_symlink(inputs, folder_ + "/link");
  for (const std::string& out : {inputs, folder_ + "/y.npy", folder_ + "/link"}) {
    request.set_out(out);
    const absl::Status refused = AnswerPredict(request);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << out;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("'" + out + "' of --out would write over a file of the data"));
  }
  request.set_out(folder_ + "/new.npy");
  const absl::Status answered = AnswerPredict(request);
  EXPECT_TRUE(answered.ok()) << answered;
}

TEST_F(InputsTest, WhatIsNoFileOfInputsIsSaid) {
  WriteUntrained(TableJob("t.csv", "a,b,label"));
  EXPECT_THAT(Predictions(folder_ + "/t.csv"),
              AllOf(HasSubstr("t.csv"), HasSubstr("inputs are a .npy or an IDX file; a table goes "
                                                  "with --data JOB.yaml")));
}

}  // namespace
}  // namespace lockstep::worker
