// SPDX-License-Identifier: Apache-2.0
// Good job files: what they mean, their defaults, --set, and the way back to text.
#include "job/job_file.h"

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"

namespace lockstep::job {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTrain[] = R"(train:
  model: {mlp: {hidden: [256, 128]}}
  data: {fashion_mnist: {}}
  global_batch: 256
  epochs: 5
  optimizer: {sgd: {lr: 3e-4}}
)";

JobSpec Load(const std::string& text, const std::vector<std::string>& sets = {}) {
  const LoadResult result = ParseJob(text, "runs/my job.yaml", sets);
  EXPECT_TRUE(result.ok()) << result.FormatErrors();
  return result.spec;
}

// Loads "-" with a socket that says `text` as the standard input.
LoadResult LoadFromSocket(const std::string& text, const std::vector<std::string>& sets = {}) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  const int before = ::dup(STDIN_FILENO);
  EXPECT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  ::close(ends[0]);
  LoadResult result = LoadJobFile(kStandardInput, sets);
  if (before < 0) {
    ::close(STDIN_FILENO);
  } else {
    ::dup2(before, STDIN_FILENO);
    ::close(before);
  }
  return result;
}

TEST(JobFile, TheStandardInputIsReadAsItIs) {
  const LoadResult good = LoadFromSocket(kTrain);
  EXPECT_TRUE(good.ok()) << good.FormatErrors();
  EXPECT_EQ(good.source, kTrain);
  EXPECT_EQ(good.spec.name(), "standard-input");
  EXPECT_THAT(LoadFromSocket("nonsense: 1\n").FormatErrors(), HasSubstr("standard input:1:1"));
  const std::string saved = std::string(kTrain) + "checkpoint: {every: 200 steps}\n";
  EXPECT_THAT(LoadFromSocket(saved).FormatErrors(), HasSubstr("--set name=NAME"));
  EXPECT_EQ(LoadFromSocket(saved, {"name=a"}).spec.checkpoint().dir(), "runs/a");
  EXPECT_TRUE(LoadFromSocket(saved, {"checkpoint.dir=there"}).ok());
}

TEST(JobFile, WorkersMayBeCountedByTheCoordinator) {
  const std::string shards = std::string(kTrain) + "  shards: 8\n";
  const JobSpec spec = Load("resources: {nodes: 2, nproc_per_node: gpu}\n" + shards);
  EXPECT_EQ(spec.resources().nproc_by(), "gpu");
  EXPECT_TRUE(IsUncounted(spec));
  EXPECT_EQ(Load("resources: {nproc_per_node: 4}\n" + shards, {"resources.nproc_per_node=auto"})
                .resources()
                .nproc_by(),
            "auto");
  JobSpec counted = spec;
  EXPECT_EQ(SetCounted({4, 5}, "cuda", &counted).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(SetCounted({4, 2}, "cuda", &counted).ok());
  EXPECT_FALSE(IsUncounted(counted));
  EXPECT_EQ(WantedWorkers(counted), 6);
  EXPECT_EQ(LeastWorkers(counted), 6);
  EXPECT_EQ(MostWorkers(counted), 6);
  EXPECT_EQ(counted.train().shards(), 8);
  EXPECT_EQ(counted.resources().device(), "cuda");
}

TEST(JobFile, HowWorkersAreCountedIsSetByTheLastFlag) {
  const auto load = [](const std::string& file, const std::vector<std::string>& sets) {
    return Load("resources: {" + file + "}\n" + kTrain + "  shards: 8\n", sets).resources();
  };
  const std::string word = "resources.nproc_per_node=auto", by = "resources.nproc_by=cpu";
  EXPECT_EQ(load("nproc_by: gpu", {word}).nproc_by(), "auto");
  EXPECT_EQ(load("nproc_per_node: gpu", {by}).nproc_by(), "cpu");
  EXPECT_EQ(load("nodes: 2", {word, by}).nproc_by(), "cpu");
  EXPECT_EQ(load("nodes: 2", {by, word}).nproc_by(), "auto");
  const Resources number = load("nproc_by: gpu", {"resources.nproc_per_node=4"});
  EXPECT_EQ(number.nproc_by(), "");
  EXPECT_EQ(number.nproc_per_node(), 4);
  EXPECT_EQ(load("nproc_by: gpu, nproc_per_node: 4", {}).nproc_by(), "gpu");
}

TEST(JobFile, CountedWorkersNeedShardsAndADeviceThatGoesWithThem) {
  const auto errors = [](const std::string& resources, const std::string& shards) {
    const LoadResult result =
        ParseJob("resources: {" + resources + "}\n" + kTrain + shards, "job.yaml", {});
    EXPECT_FALSE(result.ok()) << resources;
    return result.FormatErrors();
  };
  EXPECT_THAT(errors("nproc_per_node: gpu", ""), HasSubstr("'train.shards' has to be there"));
  EXPECT_THAT(errors("nproc_per_node: gpu, nproc_by: cpu", "  shards: 8\n"),
              HasSubstr("'nproc_per_node: gpu' stands beside 'nproc_by'; both say"));
  EXPECT_THAT(errors("nproc_per_node: gpu, device: cpu", "  shards: 8\n"),
              HasSubstr("cannot both be meant"));
  EXPECT_THAT(errors("nproc_per_node: cpu, device: cuda", "  shards: 8\n"),
              HasSubstr("cannot both be meant"));
  EXPECT_THAT(errors("nproc_per_node: auto, ranks_per_node: [1, 2]", "  shards: 8\n"),
              HasSubstr("both say how many"));
}

TEST(JobFile, FillsInDefaults) {
  const JobSpec spec = Load(std::string("resources: {nodes: 2, nproc_per_node: 4}\n") + kTrain);
  EXPECT_EQ(spec.name(), "my-job");
  EXPECT_EQ(spec.train().shards(), 8);
  EXPECT_FALSE(spec.has_elastic());
  EXPECT_EQ(LeastWorkers(spec), 8);
  EXPECT_EQ(MostWorkers(spec), 8);
  EXPECT_EQ(spec.train().precision(), "fp32");
  EXPECT_EQ(spec.train().tail(), "carry");
  EXPECT_TRUE(spec.train().reproducible());
  EXPECT_EQ(spec.train().optimizer().sgd().lr(), 3e-4);
  EXPECT_EQ(spec.train().data().fashion_mnist().std(), 0.3530);
  EXPECT_TRUE(spec.train().schedule().has_constant());
  EXPECT_EQ(spec.failure_detection().seconds(), 5);
  EXPECT_EQ(spec.restart().max_restarts(), 3);
  EXPECT_EQ(spec.queue(), "default");
}

// The file tells how long samples are.
TEST(JobFile, LeavesTheEvaluationBlockOfTokenArraysToWhoReadsThem) {
  const auto block = [](const std::string& data, const std::vector<std::string>& sets = {}) {
    std::vector<std::string> all = {"train.data={" + data + "}"};
    all.insert(all.end(), sets.begin(), sets.end());
    return Load(kTrain, all).train().eval().block();
  };
  const std::string arrays =
      "npy: {train_inputs: a, train_labels: b, test_inputs: c, test_labels: d";
  EXPECT_EQ(block(arrays + ", vocab: 100}"), 0);
  EXPECT_EQ(block(arrays + ", vocab: 100}", {"train.eval={block: 7}"}), 7);
  EXPECT_EQ(block(arrays + "}"), 1000);
  EXPECT_EQ(block("text: {path: a, length: 64}"), 64);
  const JobSpec spec = Load(kTrain, {"train.data={" + arrays + ", vocab: 100}}"});
  EXPECT_EQ(Load(ToYaml(spec)).train().eval().block(), 0);
}

TEST(JobFile, ReadsUnitsAndKeepsWrittenZeros) {
  const JobSpec spec = Load(std::string(kTrain) +
                            "resources: {memory: 64MiB}\nfailure_detection: 500ms\n"
                            "restart: {max_restarts: 0}\nlogs: {tee: 0}\n");
  EXPECT_EQ(spec.resources().memory(), 64 << 20);
  EXPECT_EQ(spec.failure_detection().nanos(), 500'000'000);
  EXPECT_TRUE(spec.restart().has_max_restarts());
  EXPECT_EQ(spec.restart().max_restarts(), 0);
  EXPECT_EQ(spec.logs().tee(), "0");
}

JobSpec LoadCommand(const std::string& text) {
  const LoadResult result = ParseJob(text, "run.yaml", {});
  EXPECT_TRUE(result.ok()) << result.FormatErrors();
  return result.spec;
}

TEST(JobFile, AGraceOfNothingIsNone) {
  const JobSpec at_once = Load("run: ls\npreemption: {grace: 0}\n");
  EXPECT_EQ(CommandGrace(at_once), absl::ZeroDuration());
  EXPECT_EQ(LeaveGrace(at_once), absl::ZeroDuration());
  EXPECT_EQ(CommandGrace(Load(ToYaml(at_once))), absl::ZeroDuration());
  EXPECT_EQ(CommandGrace(Load("run: ls\npreemption: {}\n")), kDefaultCommandGrace);
  EXPECT_EQ(TimeLimit(Load("run: ls\ntime_limit: 0\n")), absl::InfiniteDuration());
}

TEST(JobFile, RunTakesTextAListOrAMapping) {
  JobSpec spec = LoadCommand("run: python3 train.py\nsetup: make\n");
  EXPECT_TRUE(spec.run().shell());
  EXPECT_EQ(spec.run().command(0), "python3 train.py");
  EXPECT_EQ(spec.run().setup(), "make");
  spec = LoadCommand("run: [python3, train.py, 3]\n");
  EXPECT_FALSE(spec.run().shell());
  EXPECT_EQ(spec.run().command_size(), 3);
  spec = LoadCommand("run: {command: [a], setup: b}\n");
  EXPECT_EQ(spec.run().setup(), "b");
  EXPECT_EQ(spec.restart().max_restarts(), 0) << "a command may do harm twice";
  const auto setup = [](const std::string& text, const std::string& set) {
    return ParseJob(text, "run.yaml", {set}).spec.run().setup();
  };
  EXPECT_EQ(setup("run: [a]\n", "setup=b c"), "b c") << "a flag names it as a file does";
  EXPECT_EQ(setup("run: a\nsetup: b\n", "setup=c"), "c");
  EXPECT_EQ(setup("run: {command: a, setup: b}\n", "setup=c"), "c");
  EXPECT_EQ(setup("run: a\nsetup: b\n", "setup="), "");
  EXPECT_EQ(setup("run: {command: a, setup: b}\n", "run={command: d}"), "b");
  EXPECT_EQ(setup("run: {command: a, setup: b}\n", "run={command: d, setup: e}"), "e");
  for (const std::vector<std::string>& sets : {std::vector<std::string>{"setup=c", "run=d"},
                                               std::vector<std::string>{"run=d", "setup=c"}}) {
    const auto run = ParseJob("run: a\nsetup: b\n", "run.yaml", sets).spec.run();
    EXPECT_EQ(run.setup(), "c") << "another command leaves it";
    EXPECT_EQ(run.command(0), "d");
  }
  EXPECT_EQ(LoadCommand("run: a\nrestart: {max_restarts: 2}\n").restart().max_restarts(), 2);
}

TEST(JobFile, ACommandHasNoKeysOfTheEngine) {
  for (const char* extra : {"checkpoint: {}", "verify_replicas: 5 steps", "nccl: {use: never}",
                            "resources: {standby: 1}", "profile: {steps: all}"}) {
    const LoadResult result = ParseJob(std::string("run: a\n") + extra + "\n", "run.yaml", {});
    EXPECT_THAT(result.FormatErrors(), HasSubstr("goes with 'train'")) << extra;
  }
}

TEST(JobFile, SetOverridesTheFile) {
  const JobSpec spec = Load(
      kTrain, {"train.steps=7", "train.model.mlp.hidden=[8]", "env.A=1", "env.B='x: y'",
               "resources.memory=1GiB", "train.data.synthetic={features: 4}", "name=other",
               "checkpoint.every=30s", "checkpoint.every=", "env.CUDA_VISIBLE_DEVICES=", "env.D=x",
               "env.D=null", "secrets.S=", "resources.labels.rack="});
  EXPECT_EQ(spec.train().steps(), 7);
  EXPECT_EQ(spec.train().epochs(), 0);  // the alternative of the file gives way
  EXPECT_EQ(spec.train().model().mlp().hidden_size(), 1);
  EXPECT_EQ(spec.train().data().synthetic().features(), 4);
  EXPECT_EQ(spec.resources().memory(), 1 << 30);
  EXPECT_EQ(spec.env().at("A"), "1");
  EXPECT_EQ(spec.env().count("CUDA_VISIBLE_DEVICES"), 1);  // empty, which is no GPU
  EXPECT_EQ(spec.env().count("D"), 0);
  EXPECT_EQ(spec.secrets().count("S") + spec.resources().labels().count("rack"), 2);
  EXPECT_EQ(spec.name(), "other");
  EXPECT_EQ(spec.checkpoint().every(), "");
}

TEST(JobFile, CheckpointsAreSavedWhenTheFileSaysSo) {
  EXPECT_FALSE(Load(kTrain).has_checkpoint());
  const JobSpec spec = Load(std::string(kTrain) + "name: digits\ncheckpoint: {}\n");
  EXPECT_EQ(spec.checkpoint().dir(), "runs/digits");
  EXPECT_EQ(spec.checkpoint().every(), "");
  EXPECT_EQ(spec.checkpoint().keep(), 3);
  EXPECT_EQ(spec.checkpoint().resume(), "auto");
  EXPECT_EQ(Load(kTrain, {"checkpoint.dir=a/b"}).checkpoint().dir(), "a/b");
}

TEST(JobFile, AliasesStandForTheirNodes) {
  const JobSpec spec = Load(
      "resources: {nproc_per_node: &n 4}\nelastic: {min_workers: 1, "
      "max_workers: *n}\n" +
      std::string(kTrain));
  EXPECT_EQ(spec.elastic().max_workers(), 4);
}

TEST(JobFile, ComesBackFromItsYaml) {
  const std::vector<std::string> files = {
      kTrain,
      std::string(kTrain) +
          "priority: -3\ntime_limit: 90m\npreemption: {grace: 1500ms}\n"
          "checkpoint: {dir: \"a b: c\", every: 1 epochs, resume: never}\n"
          "env: {A: \"\", B: \"tab\\t\\\"q\\\" \\\\ \\x01 \\x9b é\\n\", C: \"null\", D: 007}\n",
      std::string(kTrain) + "restart: {max_restarts: 0}\nname: x.y_z-1\n",
  };
  for (const std::string& file : files) {
    const JobSpec spec = Load(file);
    const std::string yaml = ToYaml(spec);
    const LoadResult again = ParseJob(yaml, "other.yaml", {});
    ASSERT_TRUE(again.ok()) << yaml << again.FormatErrors();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, again.spec)) << yaml;
  }
}

TEST(JobFile, CommandsComeBackFromTheirYaml) {
  for (const char* file : {"run: \"echo 'a: b' # c\"\nsetup: |\n  one\n  two\n",
                           "run: [\"\", \"- x\", \"[y\"]\nname: x.y_z-1\n"}) {
    const JobSpec spec = LoadCommand(file);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, LoadCommand(ToYaml(spec))))
        << ToYaml(spec);
  }
}

TEST(JobFile, NeverShowsSecrets) {
  const std::string file = std::string(kTrain) + "secrets: {TOKEN: hush, EMPTY: }\n";
  const JobSpec spec = Load(file);
  EXPECT_EQ(spec.secrets().at("TOKEN"), "hush");
  EXPECT_EQ(spec.secrets().at("EMPTY"), "");
  EXPECT_THAT(ToYaml(spec), Not(HasSubstr("hush")));
  EXPECT_THAT(ToJson(spec), Not(HasSubstr("hush")));
  const LoadResult bad =
      ParseJob("secrets: {TOKEN: hush, B: [hush]}\n", "x.yaml", {"secrets.9=hush"});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.FormatErrors(), Not(HasSubstr("hush")));
  for (const char* name : {"secret", "Secrets", "secerts"}) {
    for (const char* value : {" {TOKEN: hush}", "\n  TOKEN: \"hush", "\n  T: hush\n  T: hush2"}) {
      const LoadResult misspelt =
          ParseJob(absl::StrCat(kTrain, name, ":", value, "\n"), "x.yaml", {});
      ASSERT_FALSE(misspelt.ok());
      EXPECT_THAT(misspelt.FormatErrors(), Not(HasSubstr("hush"))) << name << value;
    }
  }
}

TEST(JobFile, ExamplesAreGood) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/examples")) {
    if (file.path().extension() != ".yaml") continue;
    const LoadResult result = LoadJobFile(file.path(), {});
    EXPECT_TRUE(result.ok()) << result.FormatErrors();
    EXPECT_EQ(result.spec.name(), file.path().stem());
    ++files;
  }
  EXPECT_GE(files, 2);
}

// The snippets of docs/training.md, each put over a small job.
TEST(JobFile, TrainingSnippetsAreGood) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/training.md");
  std::string line, snippet;
  bool inside = false;
  int snippets = 0;
  while (std::getline(file, line)) {
    if (line == "```yaml") {
      inside = true;
      snippet.clear();
    } else if (inside && line == "```") {
      inside = false;
      ++snippets;
      std::string job = snippet +
                        "  model: {mlp: {hidden: [8]}}\n  data: {synthetic: {}}\n"
                        "  global_batch: 8\n  steps: 1000\n";
      if (snippet.find("optimizer:") == std::string::npos) job += "  optimizer: {adam: {lr: 1}}\n";
      const JobSpec spec = Load(job);
      const LoadResult again = ParseJob(ToYaml(spec), "other.yaml", {});
      EXPECT_TRUE(again.ok()) << ToYaml(spec) << again.FormatErrors();
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, again.spec)) << snippet;
    } else if (inside) {
      snippet += line + "\n";
    }
  }
  EXPECT_GE(snippets, 7);
}

TEST(JobFile, FillsInTheControlsThatAreWritten) {
  const JobSpec plain = Load(kTrain);
  EXPECT_FALSE(plain.train().has_ema() || plain.train().has_best());
  EXPECT_FALSE(plain.train().has_early_stop());
  EXPECT_EQ(plain.train().on_nonfinite(), "skip");
  const JobSpec spec = Load(
      kTrain, {"train.optimizer={adamw: {lr: 1}, groups: [{match: a}, {match: b, lr_scale: 0}]}",
               "train.best={}"});
  EXPECT_EQ(spec.train().optimizer().adamw().beta2(), 0.999);
  EXPECT_EQ(spec.train().optimizer().no_decay(), "none");
  ASSERT_EQ(spec.train().optimizer().groups_size(), 2);
  EXPECT_FALSE(spec.train().optimizer().groups(0).has_lr_scale());
  EXPECT_TRUE(spec.train().optimizer().groups(1).has_lr_scale());
  EXPECT_EQ(spec.train().best().metric(), "accuracy");
}

TEST(JobFile, OverrideWorkersKeepsTheShards) {
  JobSpec spec = Load(std::string("resources: {nproc_per_node: 4}\n") + kTrain);
  ASSERT_TRUE(OverrideWorkers(1, 2, &spec).ok());
  EXPECT_EQ(spec.resources().nproc_per_node(), 2);
  EXPECT_EQ(MostWorkers(spec), 2);
  EXPECT_EQ(spec.train().shards(), 4);
  const absl::Status status = OverrideWorkers(1, 8, &spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("8 workers for 4 shards"));
  EXPECT_EQ(spec.resources().nproc_per_node(), 2);
}

TEST(JobFile, TheBoundsThatTheFileStatesStayWhateverItsNumberOfWorkersBecomes) {
  struct Case {
    std::string elastic;
    int least, most;                                   // of the file's four workers,
    int eight_least, eight_most, two_least, two_most;  // and when they become eight, or two
  };
  const std::vector<Case> cases = {
      {"", 4, 4, 8, 8, 2, 2},
      {"min_workers: 2", 2, 4, 2, 8, 2, 2},
      {"min_workers: 4", 4, 4, 4, 8, 2, 2},
      {"max_workers: 4", 4, 4, 8, 8, 2, 4},
      {"max_workers: 6", 4, 6, 8, 8, 2, 6},
      {"min_workers: 2, max_workers: 4", 2, 4, 2, 8, 2, 4},
      {"min_workers: 4, max_workers: 4", 4, 4, 4, 8, 2, 4},
      {"min_workers: 1, max_workers: 8", 1, 8, 1, 8, 1, 8},
  };
  const auto bounds = [](const JobSpec& spec) {
    return std::pair(LeastWorkers(spec), MostWorkers(spec));
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.elastic);
    const auto load = [&](const std::string& procs, const WorkerFlags& flags) {
      const LoadResult loaded = ParseJob("resources: {nproc_per_node: " + procs + "}\nelastic: {" +
                                             each.elastic + "}\n" + kTrain + "  shards: 8\n",
                                         "x.yaml", {}, flags);
      EXPECT_TRUE(loaded.ok() && loaded.admission.ok()) << loaded.FormatErrors();
      return loaded.spec;
    };
    const std::pair eight(each.eight_least, each.eight_most), two(each.two_least, each.two_most);
    const JobSpec file = load("4", {});
    EXPECT_EQ(bounds(file), std::pair(each.least, each.most));
    // By flags.
    WorkerFlags flags;
    flags.nodes = 2;
    EXPECT_EQ(bounds(load("4", flags)), eight);
    flags = {};
    flags.nproc_per_node = 2;
    const JobSpec fewer = load("4", flags);
    EXPECT_EQ(bounds(fewer), two);
    EXPECT_EQ(bounds(Load(ToYaml(fewer))), two);
    // By the hosts that are named (a:4,b:4), or by the GPUs that are counted.
    for (const JobSpec& spec : {file, load("gpu", {})}) {
      JobSpec counted = spec;
      ASSERT_TRUE(SetCounted({4, 4}, "cuda", &counted).ok());
      EXPECT_EQ(bounds(counted), eight);
      counted = spec;
      ASSERT_TRUE(SetCounted({1, 1}, "cuda", &counted).ok());
      EXPECT_EQ(bounds(counted), two);
    }
    // The resolved file says as much as the file.
    WorkerFlags wider;
    wider.nodes = 2;
    EXPECT_EQ(bounds(ParseJob(ToYaml(file), "x.yaml", {}, wider).spec), eight);
  }
}

TEST(JobFile, RanksOfEachHostStandForTheirNumbers) {
  const JobSpec spec = Load(std::string("resources: {ranks_per_node: [3, 1]}\n") + kTrain);
  EXPECT_EQ(spec.resources().nodes(), 2);
  EXPECT_EQ(spec.resources().nproc_per_node(), 3);
  EXPECT_EQ(spec.train().shards(), 4);
  EXPECT_EQ(LeastWorkers(spec), 4);
  // What is written out is read again.
  const LoadResult again = ParseJob(ToYaml(spec), "x.yaml", {});
  ASSERT_TRUE(again.ok()) << again.FormatErrors();
  EXPECT_EQ(again.spec.resources().ranks_per_node_size(), 2);
  WorkerFlags flags;
  flags.nproc_per_node = 2;
  const LoadResult flag = ParseJob(ToYaml(spec), "x.yaml", {}, flags);
  ASSERT_TRUE(flag.ok() && flag.admission.ok()) << flag.FormatErrors() << flag.admission;
  EXPECT_EQ(flag.spec.resources().ranks_per_node_size(), 0);
  EXPECT_EQ(flag.spec.resources().nodes(), 2);
}

TEST(JobFile, CountedWorkersAreWrittenAsWhatCountsThem) {
  JobSpec spec = Load(std::string("resources: {nproc_per_node: gpu, nodes: 2}\n"
                                  "elastic: {min_workers: 5}\n") +
                      kTrain + "  shards: 8\n");
  ASSERT_TRUE(SetCounted({3, 1}, "cuda", &spec).ok());
  const LoadResult again = ParseJob(ToYaml(spec), "x.yaml", {});
  ASSERT_TRUE(again.ok()) << again.FormatErrors();
  EXPECT_TRUE(IsUncounted(again.spec));
  EXPECT_EQ(again.spec.resources().nproc_by(), "gpu");
  EXPECT_EQ(again.spec.resources().nodes(), 2);
  EXPECT_EQ(again.spec.elastic().min_workers(), 5);
  // Also where as many on each host as on the fullest one would be more than the shards.
  const JobSpec asked =
      Load(std::string("resources: {nproc_per_node: gpu, nodes: 2}\n") + kTrain + "  shards: 4\n");
  JobSpec uneven = asked;
  ASSERT_TRUE(SetCounted({3, 1}, "cuda", &uneven).ok());
  const LoadResult whole = ParseJob(ToYaml(uneven), "x.yaml", {});
  ASSERT_TRUE(whole.ok()) << whole.FormatErrors();
  EXPECT_EQ(whole.spec.resources().nproc_per_node(), asked.resources().nproc_per_node());
  EXPECT_TRUE(IsUncounted(whole.spec));
  // What was not counted stays as it was asked for.
  const JobSpec both = Load(std::string("resources: {nproc_by: gpu, nproc_per_node: 4}\n") +
                            kTrain + "  shards: 4\n");
  EXPECT_EQ(Load(ToYaml(both)).resources().nproc_per_node(), 4);
}

TEST(JobFile, WhatIsWrittenInAListWinsOverDefaults) {
  const JobSpec spec =
      Load(kTrain, {"train.model.layers.sequence=[{residual: {body: [{dropout: {rate: 0.25}}]}}, "
                    "{gelu: {approximate: tanh}}, dropout, linear]"});
  const Layers& layers = spec.train().model().layers();
  EXPECT_EQ(layers.sequence(0).residual().body(0).dropout().rate(), 0.25);
  EXPECT_EQ(layers.sequence(1).gelu().approximate(), "tanh");
  EXPECT_EQ(layers.sequence(2).dropout().rate(), 0.5);
}

TEST(JobFile, FlagsAreAppliedBeforeTheRulesAreChecked) {
  const std::string file = std::string("resources: {nproc_per_node: 4}\n") + kTrain;
  WorkerFlags flags;
  flags.nproc_per_node = 2;
  const LoadResult fewer = ParseJob(file, "x.yaml", {"train.shards=2"}, flags);
  ASSERT_TRUE(fewer.ok()) << fewer.FormatErrors();
  EXPECT_TRUE(fewer.admission.ok()) << fewer.admission;
  EXPECT_EQ(fewer.spec.resources().nproc_per_node(), 2);
  EXPECT_EQ(MostWorkers(fewer.spec), 2);
  EXPECT_EQ(fewer.spec.train().shards(), 2);
  // Shards that are not written are still the file's workers.
  EXPECT_EQ(ParseJob(file, "x.yaml", {}, flags).spec.train().shards(), 4);
  flags.nproc_per_node = 8;
  const LoadResult more = ParseJob(file, "x.yaml", {}, flags);
  EXPECT_TRUE(more.ok()) << more.FormatErrors();
  EXPECT_EQ(more.admission.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(JobFile, AnErrorOfElasticNamesElastic) {
  const auto errors = [](const std::string& elastic) {
    return ParseJob(std::string("resources: {nproc_per_node: 2}\n") + kTrain + elastic, "x.yaml",
                    {})
        .FormatErrors();
  };
  EXPECT_THAT(errors("elastic: {max_workers: 4}\n"),
              HasSubstr("'elastic.max_workers' 4: 4 workers for 2 shards"));
  EXPECT_THAT(errors("elastic: {min_workers: 3}\n"),
              HasSubstr("'elastic.min_workers' 3: 3 workers for 2 shards"));
}

}  // namespace
}  // namespace lockstep::job
