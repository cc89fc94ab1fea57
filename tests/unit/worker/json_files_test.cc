// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl and config.json are what docs/json_output.md says.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/model.pb.h"
#include "tests/json_documents.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/control/run_record.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

class JsonFiles : public testing::Test {
 protected:
  JsonFiles() : dir_(testing::TempDir() + "/json_files_XXXXXX") {
    EXPECT_NE(::mkdtemp(dir_.data()), nullptr);
  }
  ~JsonFiles() override { std::filesystem::remove_all(dir_); }
  std::string Read(const std::string& name) {
    std::ifstream file(dir_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string dir_;
  JsonDocuments documents_{LOCKSTEP_SOURCE_DIR "/docs/json_output.md"};
};

TEST_F(JsonFiles, Metrics) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  record.Step(1, 0.1, 1.0 / 3, 0.1, int64_t{1} << 40);
  record.Step(2, 0.2, NAN, 0.1, 64, /*loss_scale=*/65536, /*skipped=*/true);
  EvalResult eval;
  eval.set_step(2);
  eval.set_loss(0.5);
  eval.set_samples(10000);
  eval.set_targets(10000);
  eval.mutable_ema()->set_loss(0.25);
  record.Eval(eval);
  record.Write();
  std::istringstream lines(Read("metrics.jsonl"));
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count) documents_.Check("metrics.jsonl", line);
  EXPECT_EQ(count, 3);
  documents_.ExpectAllWritten();
  EXPECT_NE(Read("metrics.jsonl").find("\"loss\":0.3333333333333333,"), std::string::npos);
}

TEST_F(JsonFiles, ConfigOfAModel) {
  JobSpec job;
  job.set_workdir("code");
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_mlp()->add_hidden(64);
  train.mutable_data()->mutable_synthetic()->set_train_samples(5000000000);
  train.mutable_data()->mutable_synthetic()->set_features(8);
  train.set_global_batch(4);
  train.set_shards(2);
  train.set_steps(10);
  train.set_seed(~uint64_t{0});
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.mutable_eval()->set_every("never");
  train.mutable_passes()->set_fuse(false);
  const JobData data = OpenJobData(job).value();
  const CompiledJob compiled = CompileJob(job, data).value();
  const std::vector<char> state(compiled.plan->state_bytes());
  ASSERT_TRUE(WriteModel(dir_, job, *compiled.plan, state.data(), {"float32", {"a", "b"}}).ok());
  const std::string text = Read("config.json");
  documents_.Check("config.json", text);
  documents_.ExpectAllWritten();
  const auto config = nlohmann::json::parse(text);
  EXPECT_EQ(config["model"]["mlp"]["hidden"][0], 64);
  EXPECT_EQ(config["data"]["synthetic"]["train_samples"], 5000000000);
  EXPECT_EQ(config["seed"], ~uint64_t{0});
  // What reads it still does.
  ModelConfig parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &parsed).ok()) << text;
  EXPECT_EQ(parsed.seed(), ~uint64_t{0});
  EXPECT_EQ(parsed.data().synthetic().train_samples(), 5000000000);
  EXPECT_EQ(parsed.fields(0).shape(0), 8);
  EXPECT_EQ(parsed.input_type(), "float32");
  EXPECT_EQ(config["columns"][1], "b");
  EXPECT_EQ(parsed.workdir(), std::filesystem::current_path().string()) << "where the worker is";
}

}  // namespace
}  // namespace lockstep::worker
