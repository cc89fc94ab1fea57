// SPDX-License-Identifier: Apache-2.0
// What a user is told about a bad job file: place, words, caret.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_file.h"

namespace lockstep::job {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGood[] = R"(train:
  model: {mlp: {hidden: [256]}}
  data: {fashion_mnist: {}}
  global_batch: 256
  epochs: 5
  optimizer: {sgd: {lr: 0.1}}
)";

std::string Errors(const std::string& text, const std::vector<std::string>& sets = {}) {
  return ParseJob(text, "job.yaml", sets).FormatErrors();
}

TEST(JobErrors, GoldenTextOfSeveral) {
  EXPECT_EQ(Errors("name: a\nname: b\ntrain:\n\n  batch_sise: 32\n  globl_batch: 256\n"
                   "  model: {mlp: {hidden: [2, x]}}\n  data: {fashion_mnist: {}}\n"
                   "  epochs: 5  # five\n  optimizer: {sgd: {lr: -1}}\n"),
            R"(job.yaml:2:1: error: duplicate key 'name'; the first is on line 1
    2 | name: b
      | ^~~~
job.yaml:5:3: error: unknown key 'batch_sise' in 'train'; it takes: model, data, global_batch, shards, accumulate, epochs, steps, optimizer, schedule, precision, seed, tail, eval, reproducible, clip_norm, ema, label_smoothing, on_nonfinite, max_skips, early_stop, best, loss_scale, recompute, passes, zero_stage, fp8, gradient_compression
    5 |   batch_sise: 32
      |   ^~~~~~~~~~
job.yaml:6:3: error: unknown key 'globl_batch' in 'train'; did you mean 'global_batch'?
    6 |   globl_batch: 256
      |   ^~~~~~~~~~~
job.yaml:7:29: error: element 2 of 'train.model.mlp.hidden' is 'x': expected a whole number
    7 |   model: {mlp: {hidden: [2, x]}}
      |                             ^
job.yaml:10:25: error: 'train.optimizer.sgd.lr' is '-1': must be more than 0
   10 |   optimizer: {sgd: {lr: -1}}
      |                         ^~
)");
}

TEST(JobErrors, CaretStandsRightBehindTabsAndWideCharacters) {
  EXPECT_EQ(Errors(std::string(kGood) + "env: {\t\"é日\": x, 9: y}\n"),
            "job.yaml:7:8: error: 'env': 'é日' is no name of a variable (letters, digits, '_')\n"
            "    7 | env: {\t\"é日\": x, 9: y}\n"
            "      |       \t^~~~~\n"
            "job.yaml:7:17: error: 'env': '9' is no name of a variable (letters, digits, '_')\n"
            "    7 | env: {\t\"é日\": x, 9: y}\n"
            "      |       \t          ^\n");
}

TEST(JobErrors, SetIsShownWithACaret) {
  EXPECT_EQ(Errors(kGood, {"train.epocs=10"}),
            "--set: error: unknown key 'epocs' in 'train'; did you mean 'epochs'?\n"
            "      | --set train.epocs=10\n"
            "      |             ^~~~~\n");
  EXPECT_EQ(Errors(kGood, {"train.epochs=ten"}),
            "--set: error: 'train.epochs' is 'ten': expected a whole number\n"
            "      | --set train.epochs=ten\n"
            "      |                    ^~~\n");
  EXPECT_THAT(Errors(kGood, {"profile.steps=10:"}),
              HasSubstr("'profile.steps': expected a single value, found a mapping; a value that "
                        "ends in ':' has to be in quotes, as \"10:\""));
  EXPECT_THAT(Errors(kGood, {"profile.steps={a: b}"}), Not(HasSubstr("quotes")));
  EXPECT_EQ(Errors(kGood, {"profile.steps=\"10:\""}), "");
  EXPECT_EQ(Errors(kGood, {"run.setup=#5 of ten"}),
            "--set: error: a value that begins with '#', '&' or '!' has to be in quotes\n"
            "      | --set run.setup=#5 of ten\n"
            "      |                 ^~~~~~~~~\n");
  EXPECT_EQ(Errors(kGood, {"name=a #5"}),
            "--set: error: what follows ' #' is a comment: a value that has it in it has to be in "
            "quotes\n"
            "      | --set name=a #5\n"
            "      |              ^~\n");
  EXPECT_EQ(Errors(kGood, {"env.A=x\n#y"}),
            "--set: error: what follows ' #' is a comment: a value that has it in it has to be in "
            "quotes\n"
            "      | #y\n"
            "      | ^~\n");
  for (const char* lost : {"train.seed=&anchor", "env.A=&a x", "env.A= &a x", "env.A=&a !!str x",
                           "env.A=!", "env.A=!x", "env.A=! x", "env.A=!!str", "env.A=!!str #x"}) {
    EXPECT_THAT(Errors(kGood, {lost}), HasSubstr("has to be in quotes")) << lost;
  }
  for (const char* whole : {"env.A='&a x'", "env.A=!!str x", "env.A=x&a !", "env.A=x\n  y#z",
                            "env.A=|\n #x\n", "env.A=\" #\""}) {
    EXPECT_EQ(Errors(kGood, {whole}).find("in quotes"), std::string::npos) << whole;
  }
  EXPECT_THAT(Errors(kGood, {"train.seed=null # not said"}), HasSubstr("is a comment"));
  for (const char* nothing : {"train.seed=", "train.seed= ", "train.seed=null", "train.seed=~"}) {
    EXPECT_EQ(Errors(kGood, {nothing}), "") << nothing;
  }
  EXPECT_EQ(Errors(kGood, {"train.seed=1#5"}).find("comment"), std::string::npos);
  EXPECT_THAT(Errors(kGood, {"train.epochs"}), HasSubstr("expected path=value"));
  EXPECT_THAT(Errors(kGood, {"train.epochs.x=1"}), HasSubstr("nothing is below it"));
  EXPECT_THAT(Errors(kGood, {"train.epochs=[1"}), HasSubstr("not valid YAML"));
  EXPECT_EQ(Errors(kGood, {"train.optimizer={sgd: {lr: 0.1, lr: 0.2}}"}),
            "--set: error: duplicate key 'lr'; keep one\n"
            "      | --set train.optimizer={sgd: {lr: 0.1, lr: 0.2}}\n"
            "      |                                       ^~\n");
}

struct Case {
  std::string line;      // added to a good file
  std::string expected;  // part of the error
};

TEST(JobErrors, EveryKind) {
  const std::vector<Case> cases = {
      {"name: a b", "job.yaml:7:7: error: 'name' is 'a b': expected letters"},
      {"epochs: 3", "unknown key 'epochs' in the job file; it belongs in 'train'"},
      {"run: ls", "the job has train and run; give exactly one of train, run"},
      {"priority: high", "'priority' is 'high': expected a whole number"},
      {"priority: \"1\"", "expected a whole number, without quotes"},
      {"priority: 99999999999", "the number is too large"},
      {"priority: [1]", "'priority': expected a single value, found a list"},
      {"priority:", "'priority' has no value"},
      {"resources: 4", "'resources': expected a mapping, found '4'"},
      {"resources: {nproc_per_node: 2.5}", "expected a whole number"},
      {"resources: {nproc_per_node: 0}", "must be at least 1 and at most 4096"},
      {"resources: {standby: 4097}", "must be at least 0 and at most 4096"},
      {"elastic: {max_workers: 4097}",
       "'elastic.max_workers' is '4097': must be at least 1 and at most 4096"},
      {"resources: {device: tpu}", "expected auto, cpu, cuda or cuda:N"},
      {"resources: {memory: 64}", "64 has no unit (64MiB?)"},
      {"resources: {memory: 64M}", "'M' is no unit of size"},
      {"time_limit: 30", "30 has no unit (30s?)"},
      {"time_limit: 3 weeks", "expected a duration"},
      {"failure_detection: 10ms", "must be at least 100ms and at most 1h"},
      {"checkpoint: {every: 500 stps}", "expected such as '500 steps', '1 epoch' or '30s'"},
      {"checkpoint: {keep: 0}", "must be at least 1"},
      {"logs: {tee: some}", "expected one of all, 0, none"},
      {"env: [A]", "'env': expected a mapping from names to values"},
      {"env: {A: [x]}", "'env.A': expected text, found a list"},
      {"env: {A: 1}\nsecrets: {A: 2}", "'A' is in 'env' and in 'secrets'; keep one"},
      {"elastic: {min_workers: 3, max_workers: 2}", "'elastic.min_workers' 3 is more than"},
      {"elastic: {max_workers: 2}", "'elastic.max_workers' 2: 2 workers for 1 shard"},
      {"<<: {a: b}", "merge keys are not supported"},
      {"? [a]\n: b", "a key of the job file must be a name"},
      {"queue: !x y", "YAML tags have no meaning"},
      {"---\nname: b", "a second document"},
      {"env: [A", "a list opened with '[' is not closed"},
      {"env: {A: b", "a mapping opened with '{' is not closed"},
      {"\tname: x", "a tab in the indentation"},
      {"name: a: b", "a ':' where no key can stand"},
      {"name: \x01", "this byte is not text"},
      {"env: {A: \"a\\0b\"}", "job.yaml:7:10: error: this text has a NUL character (\\0)"},
      {"name: \xff", "job.yaml:7:7: error: this byte is not text"},
      {"name: *nobody", "not valid YAML"},
      {"name: &a [*a]", "this alias stands inside the node that it names"},
      {"name: \"x\nqueue: q", "job.yaml:7:7: error: not valid YAML: a text opened with \" is not"},
      {"name: 'x''\nqueue: q", "job.yaml:7:7: error: not valid YAML: a text opened with ' is not"},
      {"env: {A: &a \"x\\\"}", "job.yaml:7:10: error: not valid YAML: a text opened with \" is"},
      {"\"name: x", "job.yaml:7:1: error: not valid YAML: a text opened with \" is not closed"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Errors(std::string(kGood) + c.line + "\n"), HasSubstr(c.expected)) << c.line;
  }
}

// A shell would make something of these; a job file takes them for names of folders.
TEST(JobErrors, PathsThatAShellWouldExpand) {
  const std::vector<std::string> fields = {
      "workdir",
      "checkpoint.dir",
      "checkpoint.resume",
      "debug.dump_tensors",
      "train.data.text.path",
      "train.data.tokens.train",
      "train.data.tokens.test",
      "train.data.cifar10.path",
      "train.data.fashion_mnist.path",
      "train.data.idx.train_images",
      "train.data.idx.train_labels",
      "train.data.idx.test_images",
      "train.data.idx.test_labels",
      "train.data.npy.train_inputs",
      "train.data.npy.train_labels",
      "train.data.npy.test_inputs",
      "train.data.npy.test_labels",
      "train.data.csv.train",
      "train.data.csv.test",
  };
  const std::pair<std::string, std::string> values[] = {
      {"~/ck",
       "'~' is not expanded in a job file: write the whole path, or ./~/ck for a folder of"},
      {"\"~\"", "'~' is not expanded"},
      {"~ann/ck", "'~' is not expanded"},
      {"$HOME/ck", "variables are not expanded in a job file: write the path itself"},
      {"$X", "write the path itself, or ./$X for a folder of that name"},
      {"/data/$USER", "variables are not expanded"},
      {"./$A/$B", "variables are not expanded"},
      {"\"${HOME}/ck\"", "variables are not expanded"},
      {"ck-$_1", "variables are not expanded"},
      {"\"ck/${LOCKSTEP_ARRAY_INDEX}\"", "'submit --array' alone replaces ${LOCKSTEP_ARRAY_INDEX}"},
  };
  for (const std::string& field : fields) {
    for (const auto& [value, expected] : values) {
      const std::string set = field + "=" + value;
      EXPECT_THAT(Errors(kGood, {set}), HasSubstr("'" + field + "' is '")) << set;
      EXPECT_THAT(Errors(kGood, {set}), HasSubstr(expected)) << set;
    }
    for (const char* good :
         {"./~", "./~/ck", "a~", "a/~/b", "a$", "$1", "cost$5", "a b", "./$NAME/ck"}) {
      EXPECT_THAT(Errors(kGood, {field + "=" + good}), Not(HasSubstr("expanded"))) << field << good;
    }
  }
  // What a shell reads, and what is text, stays as it is.
  EXPECT_EQ(Errors("run: 'ls ~ $HOME'\nsetup: 'ls ${HOME}'\nenv: {A: ~/b, B: $PATH}\n"), "");
}

TEST(JobErrors, NeverShowSecretsHoweverTheFileIsLaidOut) {
  for (const char* text :
       {"{\n  \"train\": 5,\n  \"secrets\": {\n    \"T\": \"hush\",\n    \"B\": [\"hush\"]\n  "
        "}\n}\n",
        "{\n\"secrets\": {\n\"T\": \"hush\",\n\"B\": [\"hush\"]\n}\n}\n",
        "  secrets:\n    A: secret\n    T: hush\n    T: hush2\n  train: 5\n",
        "secrets:\nT: hush\nU: hush\n", "secrets:\n- T: hush\n", "secrets: {\nT: hush,\nT: hush}\n",
        "secrets:\n  T: 'a\nname: [hush]'\n  T: hush\n",
        "{\"env\": {\n \"A\": \"b\"\n}, \"secrets\": {\n\"name\": [\"hush\"],\n\"T\": "
        "[\"hush\"]\n}}\n",
        "? secrets\n:\n  T: [hush]\n", "{name: x, secrets:\n{T: [hush],\nU: [hush]}}\n",
        "&a secrets:\n  T: [hush]\n", "!<tag:yaml.org,2002:map> secrets:\n  T: [hush]\n",
        "{\"Secrets\"\n: {T: hush\n, T: [hush]}}\n", "secrets {\n T: [hush],\n U: hush}}\n",
        "my_secrets: {T: hush,\n  T: hush}\n"}) {
    const LoadResult bad = ParseJob(text, "x.yaml", {});
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.FormatErrors(), Not(HasSubstr("hush"))) << text;
  }
  for (const char* set : {"secrets.CONF={\"k\": 1,\n \"k\": \"hush\"}",
                          "secrets.KEY=-----BEGIN\nProc-Type: 4,hush\n", "secret.K=[\nhush"}) {
    const LoadResult bad = ParseJob("train: 5\n", "x.yaml", {set});
    EXPECT_THAT(bad.FormatErrors(), AllOf(HasSubstr("--set"), Not(HasSubstr("hush")))) << set;
  }
  // What stands before or after them is shown.
  EXPECT_THAT(
      ParseJob("{\"env\": [1],\n \"secrets\": {\"T\": \"hush\"}}\n", "x.yaml", {}).FormatErrors(),
      HasSubstr("| {\"env\": [1],"));
  EXPECT_THAT(ParseJob("  secrets:\n    T: hush\n  train: 5\n", "x.yaml", {}).FormatErrors(),
              HasSubstr("|   train: 5"));
  // Nor is what stands beside a text that only speaks of them.
  const std::string beside =
      ParseJob(
          "train:\n  data: {text: {path: /data/secret-corpus}}\n  seed: [5]\n"
          "env:\n  A: the secrets\n  B: [6]\n  C: [secrets]\nresources:\n  cudnn: secret\n",
          "x.yaml", {})
          .FormatErrors();
  EXPECT_THAT(beside, HasSubstr("|   seed: [5]"));
  EXPECT_THAT(beside, HasSubstr("|   B: [6]"));
  EXPECT_THAT(beside, AllOf(HasSubstr("x.yaml:7:6"), HasSubstr("x.yaml:9:10")));
  EXPECT_THAT(beside, Not(HasSubstr("|   C:")));
  EXPECT_THAT(beside, Not(HasSubstr("|   cudnn")));
}

// The parser sees some of these a line later, and calls others by names that users do not know.
TEST(JobErrors, SlipsOfYamlAreToldWhereTheyAre) {
  const std::string no_colon = "error: not valid YAML: a key and its value have ': ' between them";
  const std::vector<Case> cases = {
      {"train:\n  epochs: 5\n  global_batch 8\n  steps: 5\n", "job.yaml:3:3: " + no_colon},
      {"train:\n  epochs: 5\n  global_batch:8\n  steps: 5\n", "job.yaml:3:3: " + no_colon},
      {"train:\n  epochs: 5\n  global_batch = 8\n  # eight\n\n  a: 5\n",
       "job.yaml:3:3: " + no_colon},
      {"train:\n  epochs: 5\n  global_batch 8\nname: x\n", "job.yaml:3:3: " + no_colon},
      {"train:\n  global_batch 8\n  epochs: 5\n", "job.yaml:2:3: " + no_colon},
      {"name x\nqueue: q\n", "job.yaml:1:1: " + no_colon},
      {"name: x\nqueue q\n", "job.yaml:2:1: error: unknown key 'queue q' in the job file; did you"},
      {"run: ls\n  a b\n  c: d\n", "job.yaml:3:4: error: not valid YAML: a ':' where no key"},
      {"run: ls\n  -l\n  a: b\n", "job.yaml:3:4: error: not valid YAML: a ':' where no key"},
      {"  name: x\nqueue: q\n",
       "job.yaml:2:1: error: not valid YAML: this line is indented less than the first key"},
      {"name: x\n--- # next\nname: y\n", "a second document; a job file holds one job"},
      {"name: *.bias\n", "job.yaml:1:7: error: not valid YAML: a text that begins with '*' has to"},
      {"run: |\n    cd x\n  make\nname: y\n", "job.yaml:3:3: error: not valid YAML: this text"},
      {"setup: >-2\n    cd x\n # all\n make\nname: y\n",
       "job.yaml:4:2: error: not valid YAML: this"},
      {"env:\n  A: |+ # text\n      cd x\n    make\nname: y\n",
       "job.yaml:4:5: error: not valid YAML: this text"},
      {"run: @x\n",
       "job.yaml:1:6: error: not valid YAML: a text that begins with '@' has to be in"},
      {"run: `x`\n", "job.yaml:1:6: error: not valid YAML: a text that begins with '`' has to be"},
      {"run: %x\n",
       "job.yaml:1:6: error: not valid YAML: a text that begins with '%' has to be in"},
  };
  for (const Case& c : cases) EXPECT_THAT(Errors(c.line), HasSubstr(c.expected)) << c.line;
}

TEST(JobErrors, ASetupThatWouldBeLost) {
  EXPECT_THAT(Errors("run: {command: a, setup: b}\nsetup: c\n", {}),
              HasSubstr("job.yaml:2:1: error: 'setup' stands beside 'run' and, on line 1, in it"));
  EXPECT_EQ(Errors("run: a\nsetup: c\n", {"run.setup=d"}), "");
  // A flag may name it as it stands in the file.
  EXPECT_EQ(Errors("run: [a]\n", {"setup=d"}), "");
  EXPECT_NE(Errors(kGood, {"setup=d"}), "") << "there is no command";
}

// Flags that ask for another number of workers move the bounds (job/meaning/workers.h); a file that
// has both wrong is not what its author meant.
TEST(JobErrors, BoundsThatTheFilesOwnWorkersAreBeyond) {
  const std::string four = std::string(kGood) + "resources: {nproc_per_node: 4}\n";
  const std::string command = "run: ls\n";
  EXPECT_THAT(Errors(four + "elastic: {min_workers: 6, max_workers: 8}\n", {"train.shards=8"}),
              HasSubstr("job.yaml:8:24: error: 'elastic.min_workers' is 6 and 'resources' asks for "
                        "4 workers (nodes x nproc_per_node)"));
  EXPECT_THAT(Errors(four + "elastic: {max_workers: 2}\n"),
              HasSubstr("'elastic.max_workers' is 2 and 'resources' asks for 4 workers"));
  EXPECT_THAT(Errors(command + "elastic: {min_workers: 2, max_workers: 8}\n"),
              HasSubstr("'elastic.min_workers' is 2 and 'resources' asks for 1 worker (nodes"));
  EXPECT_THAT(Errors(command + "resources: {ranks_per_node: [2, 1]}\nelastic: {min_workers: 4}\n"),
              HasSubstr("asks for 3 workers (ranks_per_node)"));
  EXPECT_EQ(Errors(four + "elastic: {min_workers: 4, max_workers: 4}\n"), "");
  EXPECT_EQ(Errors(four + "elastic: {min_workers: 1, max_workers: 8}\n", {"train.shards=8"}), "");
  // How many they will be is not known yet.
  EXPECT_EQ(Errors(command + "resources: {nproc_per_node: gpu}\nelastic: {min_workers: 2}\n"), "");
  const std::string bounds = command + "elastic: {min_workers: 2, max_workers: 3}\n";
  EXPECT_TRUE(ParseJob(bounds, "job.yaml", {}, {.nodes = 4}).ok());
  EXPECT_TRUE(ParseJob(bounds, "job.yaml", {}, {.nproc_per_node = 1}).ok());
}

TEST(JobErrors, PrecisionsAndWhatGoesWithThem) {
  const std::string good = kGood;
  const auto errors = [&](const std::string& precision, const std::string& set) {
    return Errors(good, {"train.precision=" + precision, set});
  };
  EXPECT_EQ(errors("fp16", "train.loss_scale={init_scale: 128, growth_interval: 10}"), "");
  EXPECT_EQ(errors("pure_bf16", "train.recompute=blocks"), "");
  EXPECT_EQ(errors("tf32", "train.recompute=none"), "");
  EXPECT_THAT(errors("fp16", "train.loss_scale={init_scale: 1000}"),
              HasSubstr("is no power of two; 512 and 1024 are"));
  EXPECT_THAT(errors("fp16", "train.loss_scale={backoff_factor: 2}"), HasSubstr("at most 1"));
  EXPECT_THAT(errors("pure_bf16", "train.ema={decay: 0.9}"), HasSubstr("use bf16"));
  EXPECT_EQ(errors("bf16", "train.zero_stage=1"), "");
  EXPECT_THAT(errors("pure_bf16", "train.zero_stage=1"), HasSubstr("needs fp32 weights"));
  EXPECT_EQ(errors("bf16", "train.passes={whole_step_graph: true, step_graph: true}"), "");
  EXPECT_THAT(errors("bf16", "train.passes={whole_step_graph: true, step_graph: false}"),
              HasSubstr("puts the update into the recording"));
  EXPECT_EQ(errors("bf16", "train.fp8=true"), "");
  EXPECT_EQ(errors("fp32", "train.fp8=false"), "");
  EXPECT_THAT(errors("pure_bf16", "train.fp8=true"),
              HasSubstr("'train.fp8' goes with precision bf16, not with pure_bf16"));
  EXPECT_THAT(errors("fp32", "train.zero_stage=2"), HasSubstr("at most 1"));
  EXPECT_THAT(errors("fp32", "train.gradient_compression=fp8"),
              HasSubstr("expected one of none, bf16"));
  EXPECT_THAT(Errors(good, {"train.gradient_compression=bf16", "nccl={use: always}"}),
              HasSubstr("'nccl.use' is always"));
  EXPECT_EQ(Errors(good, {"train.gradient_compression=none", "nccl={use: always}"}), "");
  EXPECT_THAT(Errors(good, {"train.zero_stage=1", "train.optimizer={lamb: {lr: 0.1}}"}),
              HasSubstr("lamb needs whole ones"));
}

// Whether "auto" is a GPU is known where the job runs.
TEST(JobErrors, WhatIsComputedAgainIsByTheMemoryOfTheDevice) {
  const auto errors = [](const std::string& device, const std::string& memory) {
    return Errors(kGood, {"train.recompute=auto", "resources.device=" + device,
                          "resources." + memory + "=1GiB"});
  };
  EXPECT_EQ(errors("cpu", "memory"), "");
  EXPECT_EQ(errors("cuda:1", "gpu_memory"), "");
  EXPECT_EQ(errors("auto", "memory"), "");
  EXPECT_EQ(errors("auto", "gpu_memory"), "");
  EXPECT_THAT(errors("cpu", "gpu_memory"), HasSubstr("auto needs 'resources.memory', into"));
  EXPECT_THAT(errors("cuda", "memory"), HasSubstr("auto needs 'resources.gpu_memory', into"));
  EXPECT_THAT(errors("cuda:1", "memory"), HasSubstr("auto needs 'resources.gpu_memory', into"));
}

TEST(JobErrors, ModelsThatSeeWhatTheyAreToGuess) {
  const auto errors = [](const std::string& model, const std::string& data) {
    return Errors(kGood, {"train.model={" + model + ": {}}", "train.data={" + data + "}"});
  };
  EXPECT_THAT(errors("bert", "text: {path: a}"),
              HasSubstr("'train.model.bert' sees the byte that it is to guess: set "
                        "'train.data.text.masked' (0.15)"));
  EXPECT_THAT(errors("bert", "text: {path: a, masked: 0}"), HasSubstr("sees the byte"));
  EXPECT_THAT(errors("bert", "tokens: {}"),
              HasSubstr("'train.model.bert' sees the token that it is to guess, and "
                        "'train.data.tokens' hides none"));
  EXPECT_THAT(errors("gpt", "text: {path: a, masked: 0.15}"),
              HasSubstr("'train.data.text.masked' is for bert, gpt guesses the next byte"));
  EXPECT_EQ(errors("bert", "text: {path: a, masked: 0.15}"), "");
  EXPECT_THAT(errors("bert", "text: {path: a, masked: 0.15, length: 4}"),
              HasSubstr("'train.data.text.length' 4: with 'masked' it is from 5 on"));
  EXPECT_EQ(errors("bert", "text: {path: a, masked: 0.15, length: 5}"), "");
  EXPECT_EQ(errors("gpt", "text: {path: a}"), "");
  EXPECT_EQ(errors("gpt", "tokens: {}"), "");
}

TEST(JobErrors, SamplesThatAreLongerThanTheModelsContext) {
  const auto errors = [](const std::string& model, const std::string& data) {
    return Errors(kGood, {"train.model={" + model + "}", "train.data={" + data + "}"});
  };
  EXPECT_THAT(errors("gpt: {context: 16}", "text: {path: a}"),
              HasSubstr("'train.model.gpt.context' 16 is below the 256 tokens of a sample; raise "
                        "it, or lower 'train.data.text.length'"));
  EXPECT_THAT(errors("bert: {context: 16}", "text: {path: a, length: 17, masked: 0.15}"),
              HasSubstr("'train.model.bert.context' 16 is below the 17 tokens"));
  EXPECT_THAT(errors("gpt: {context: 16}", "tokens: {}"), HasSubstr("'train.data.tokens.length'"));
  EXPECT_EQ(errors("gpt: {context: 16}", "text: {path: a, length: 16}"), "");
  EXPECT_EQ(errors("gpt: {context: 300}", "text: {path: a}"), "");
  EXPECT_EQ(errors("gpt: {context: 16}",
                   "npy: {train_inputs: a, train_labels: b, test_inputs: c, "
                   "test_labels: d, vocab: 9}"),
            "");
}

TEST(JobErrors, EveryKindOfTraining) {
  const std::vector<Case> cases = {
      {"train.shards=3",
       "'train.global_batch' 256 does not divide into 3 shards; 255 or 258 would"},
      {"train={shards: 128, accumulate: 64, global_batch: 8192}",
       "'train.shards' 128 x 'train.accumulate' 64 is 8192: a step has at most 4096 parts"},
      {"train.global_batch=33554432", "'train.global_batch' 33554432 is 33554432 samples at once"},
      {"train.accumulate=3", "does not divide the 256 samples of a shard"},
      {"train.accumulate=0", "must be at least 1"},
      {"train.loss_scale={init_scale: 8}", "goes with precision fp16 or pure_fp16"},
      {"train.recompute=auto", "needs 'resources.memory', or on a GPU 'resources.gpu_memory'"},
      {"train.recompute=some", "expected one of none, selective, blocks, auto"},
      {"train.precision=fp23", "unknown precision; did you mean 'fp32'?"},
      {"train.precision=double",
       "unknown precision; known are: fp32, tf32, bf16, fp16, pure_bf16, pure_fp16"},
      {"train.seed=-1", "must be at least 0"},
      {"train.reproducible=yes", "expected true or false"},
      {"train.tail=keep", "expected one of carry, drop"},
      {"train.eval={every: 30s}", "expected such as '500 steps', '1 epoch' or 'never'"},
      {"train.model=mlp", "expected a mapping such as {mlp: {}}, found 'mlp'"},
      {"train.model={}", "'train.model' needs exactly one"},
      {"train.model={layers: {sequence: [lnear]}}",
       "sequence[0]' is 'lnear'; did you mean 'linear'?"},
      {"train.model={layers: {sequence: [transformer]}}",
       "expected a mapping such as {linear: {}}"},
      {"train.data={loader: {}}", "needs exactly one of fashion_mnist, idx, synthetic"},
      {"train.data={idx: {}}", "'train.data.idx' needs 'train_images'"},
      {"train.model.mlp.hidden=256", "expected a list such as [256], found '256'"},
      {"train.model.mlp.hidden=[0]", "must be at least 1"},
      {"train.optimizer={sgd: {}}", "'train.optimizer.sgd' needs 'lr'"},
      {"train.optimizer.sgd.lr=.nan", "expected a number"},
      {"train.optimizer.sgd.lr=1e999", "out of range"},
      {"train.optimizer.sgd.momentum=1", "must be at least 0 and less than 1"},
      {"train.optimizer.sgd.nesterov=true", "needs a momentum above 0"},
      {"train.data={npy: {train_inputs: a, train_labels: b, vocab: 50, padding: 50}}",
       "'train.data.npy.padding' is 50: it must be a token, below 'vocab' 50"},
      {"train.data={npy: {train_inputs: a, train_labels: b, padding: 0}}",
       "'train.data.npy.padding' is a token: it goes with 'vocab'"},
      {"train.optimizer={adamw: {lr: 1}, groups: [{lr_scale: 2}]}",
       "'train.optimizer.groups[0]' needs 'match'"},
      {"train.optimizer={adamw: {lr: 1}, groups: [x]}", "is 'x': expected a mapping"},
      {"train.optimizer={adamw: {lr: 1}, groups: {}}", "expected a list of mappings"},
      {"train.schedule={step: {}}", "needs exactly one of every, milestones"},
      {"train.schedule={step: {milestones: [5, 3]}}",
       "'train.schedule.step.milestones' must rise, and 3 comes after 5"},
      {"train.schedule={step: {milestones: [3, 3]}}", "must rise, and 3 comes after 3"},
      {"train.data={text: {path: ''}}",
       "'train.data.text.path' is '': write a value or remove the key"},
      {"checkpoint.resume=''", "'checkpoint.resume' is '': write a value or remove the key"},
      {"train.data={csv: {train: a, test: b, label: ''}}",
       "'train.data.csv.label' is '': write a value or remove the key"},
      {"train.ema={}", "'train.ema' needs 'decay'"},
      {"train.ema={decay: 0}", "must be more than 0 and less than 1"},
      {"train.best={metric: ema_loss}", "'train.best.metric' ema_loss needs 'train.ema'"},
      {"train={best: {}, eval: {every: never}}", "'train.best' needs evaluations"},
      {"train.epochs=null", "'train' needs exactly one of epochs, steps"},
      {"train.global_batch=", "'train' needs 'global_batch'"},
      {"train={epochs: 1, steps: 2}", "'train' has epochs and steps"},
      {"train=", "the job needs exactly one of train, run"},
      {"run=[]",
       "'run': expected a command: text for the shell, or a list of words, found an empty"},
      {"resources={cudnn: sometimes}", "expected one of auto, always, never"},
      {"resources={cudnn: always, matmul: library}", "'resources.matmul' library measures nothing"},
      {"nccl={use: sometimes}", "expected one of auto, always, never"},
      {"nccl={order: fastest}", "set 'train.reproducible' to false"},
      {"nccl={alog: ring}", "did you mean 'algo'?"},
      {"nccl={nthreads: 32}", "must be at least 64"},
      {"nccl={p2p_level: FAR}", "expected one of LOC, NVL, PIX, PXB, PHB, SYS"},
      {"nccl={min_ctas: 8, max_ctas: 4}", "'nccl.min_ctas' 8 is more than 'nccl.max_ctas' 4"},
      {"resources={ranks_per_node: [2, 0]}", "must be at least 1 and at most 4096"},
      {"resources={nproc_per_node: 513}", "513 workers on one host: at most 512 of a job that"},
      {"resources={ranks_per_node: [1, 600]}", "600 workers on one host: at most 512"},
      {"resources={nodes: 3, ranks_per_node: [2, 1]}",
       "'resources.nodes' is 3 and 'resources.ranks_per_node' has 2 hosts; leave 'nodes' out"},
      {"resources={nproc_per_node: 4, ranks_per_node: [2, 1]}",
       "the most in 'resources.ranks_per_node' is 2; leave 'nproc_per_node' out"},
      {"nccl={env: {NCLL_X: 1}}", "'NCLL_X' goes into 'env'"},
      {"nccl={env: {NCCL_ALGO: ring}}", "'NCCL_ALGO' is the key 'algo' of 'nccl'"},
  };
  for (const Case& c : cases) {
    std::string expected = c.expected;
    EXPECT_THAT(Errors(kGood, {c.line}), HasSubstr(expected)) << c.line;
  }
  EXPECT_THAT(Errors(kGood, {"train.shards=2", "resources.nproc_per_node=4"}),
              HasSubstr("4 workers for 2 shards: a worker needs at least one shard"));
  for (const char* kind : {"cosine", "linear", "polynomial", "one_cycle"}) {
    const std::string schedule = std::string("train.schedule={") + kind + ": {}, warmup_steps: ";
    EXPECT_THAT(Errors(kGood, {"train.steps=2", schedule + "2}"}),
                HasSubstr(std::string("'train.schedule.warmup_steps' 2: a ") + kind +
                          " schedule needs more than the 2 steps of the job"));
    EXPECT_EQ(Errors(kGood, {"train.steps=2", schedule + "1}"}), "");
  }
  EXPECT_THAT(
      Errors(kGood, {"train.steps=4", "train.schedule={wsd: {decay_steps: 1}, warmup_steps: 4}"}),
      HasSubstr("a wsd schedule needs more than the 4 steps of the job"));
  EXPECT_THAT(Errors(kGood, {"train.steps=4",
                             "train.schedule={wsd: {decay_steps: "
                             "9223372036854775807}, warmup_steps: 1}"}),
              HasSubstr("are more than the 4 steps of the job"));
  // These go on as if the run were longer: it is warned of.
  for (const char* kind : {"constant: {}", "step: {every: 3}", "exponential: {gamma: 0.5}"}) {
    EXPECT_EQ(Errors(kGood, {"train.steps=2",
                             std::string("train.schedule={") + kind + ", warmup_steps: 3}"}),
              "");
  }
}

TEST(JobErrors, FilesThatAreNoJob) {
  EXPECT_THAT(Errors(""), HasSubstr("the job needs exactly one of train, run"));
  EXPECT_THAT(Errors("- a"), HasSubstr("a job file is a mapping"));
  EXPECT_THAT(LoadJobFile("/nowhere/job.yaml", {}).FormatErrors(),
              HasSubstr("/nowhere/job.yaml: error: cannot read the job file: No such file"));
  EXPECT_THAT(LoadJobFile("/", {}).FormatErrors(), HasSubstr("Is a directory"));
  EXPECT_THAT(Errors(std::string(2 << 20, ' ')), HasSubstr("too large"));
  EXPECT_THAT(Errors(std::string(100, '[')), HasSubstr("nested too deeply"));
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) laughs += last + ", ";
    laughs += "]\n";
  }
  EXPECT_THAT(Errors(laughs), HasSubstr("expand to too much"));
  // Few nodes of much text.
  std::string long_text = "a: &a " + std::string(700 << 10, 'x') + "\nb: [";
  for (int i = 0; i < 5; ++i) long_text += "*a, ";
  EXPECT_THAT(Errors(long_text + "]\n"), Not(HasSubstr("expand to too much")));
  EXPECT_THAT(Errors(long_text + "*a]\n"),
              AllOf(HasSubstr("job.yaml:2:"), HasSubstr("expand to too much")));
}

}  // namespace
}  // namespace lockstep::job
