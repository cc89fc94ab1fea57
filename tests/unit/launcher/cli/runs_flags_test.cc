// SPDX-License-Identifier: Apache-2.0
// What validate and plan make of the flags of a run.
#include <map>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/flags.h"
#include "launcher/verbs/validate.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

std::string NoEnvironment(const std::string&) { return ""; }

// A value for each flag of a run, and the flags that it goes with.
struct RunsFlag {
  std::string value = {};
  Words with = {};
};
const std::map<std::string, RunsFlag>& Table() {
  static const auto* const kRendezvous = new Words{"--rdzv-endpoint=a:1", "--node-rank=1"};
  static const auto* const flags = new std::map<std::string, RunsFlag>{
      {"nproc-per-node", {"2"}},
      {"nnodes", {"1"}},
      {"set", {"a=b"}},
      {"max-restarts", {"1"}},
      {"name", {"x"}},
      {"profile", {}},
      {"profile-steps", {"1:2"}},
      {"profile-sort", {"self"}},
      {"interpret", {}},
      {"dump-tensors", {"d"}},
      {"run-dir", {"d"}},
      {"runs-dir", {"d"}},
      {"rdzv-endpoint", {"a:1", {"--node-rank=0"}}},
      {"hosts", {"a,b:2"}},
      {"hostfile", {"h"}},
      {"ssh", {"enter", {"--hosts=a"}}},
      {"launcher", {"/opt/launcher", {"--hosts=a"}}},
      {"node-rank", {"1", {"--rdzv-endpoint=a:1"}}},
      {"plaintext", {"", *kRendezvous}},
      {"token-file", {"t", *kRendezvous}},
      {"interfaces", {"eth0", *kRendezvous}},
      {"output", {"json"}},
      {"quiet", {}},
      {"log-level", {"info"}},
      {"help", {}},
  };
  return *flags;
}

TEST(RunsFlags, ValidateAndPlanTakeTheFlagsOfARun) {
  for (const Flag& flag : AllFlags()) {
    if (!TakesFlag("run", flag)) continue;
    SCOPED_TRACE(flag.name);
    const auto row = Table().find(flag.name);
    ASSERT_NE(row, Table().end()) << "no row in the test's table";
    Words line = {"--" + flag.name};
    if (!flag.value.empty()) line.push_back(row->second.value);
    line.insert(line.end(), row->second.with.begin(), row->second.with.end());
    line.push_back("j.yaml");
    for (const char* verb : {"run", "validate", "plan"}) {
      Words words = line;
      words.insert(words.begin(), verb);
      const auto command = ParseCommandLine(words, NoEnvironment);
      EXPECT_TRUE(command.ok()) << verb << ": " << command.status();
    }
  }
  const auto expect_all = [](const RunArgs& args) {
    EXPECT_EQ(args.job.nproc_per_node->count, 2);
    EXPECT_EQ(*args.job.nodes, 2);
    EXPECT_EQ(args.job.run_dir, "d");
    EXPECT_THAT(args.job.sets, ElementsAre("a=b", "name=\"x\"", "profile.sort=\"self\""));
    EXPECT_THAT(args.hosts->hosts, ElementsAre(HostSlots{"a", 0}, HostSlots{"b", 3}));
    EXPECT_EQ(args.interfaces, "eth0");
  };
  const auto with = [](const char* verb) {
    return Words{
        verb,       "--nproc-per-node=2",  "--nnodes=2",  "--set",         "a=b",
        "--name=x", "--profile-sort=self", "--run-dir=d", "--hosts=a,b:3", "--interfaces=eth0",
        "j.yaml"};
  };
  expect_all(std::get<RunArgs>(*ParseCommandLine(with("run"), NoEnvironment)));
  expect_all(std::get<ValidateArgs>(*ParseCommandLine(with("validate"), NoEnvironment)));
  expect_all(std::get<PlanArgs>(*ParseCommandLine(with("plan"), NoEnvironment)));
}

TEST(RunsFlags, ValidateAndPlanNameTheContradictionsOfARun) {
  const std::vector<Words> lines = {{"--run-dir=a", "--runs-dir=b"},
                                    {"--hosts=a,,b"},
                                    {"--hosts=a,b", "--nnodes=3"},
                                    {"--hosts=a", "--hostfile=h"},
                                    {"--hosts=a", "--node-rank=0"},
                                    {"--hosts=a", "--nproc-per-node=gpu"},
                                    {"--hosts=a", "--rdzv-endpoint=b"},
                                    {"--ssh=x"},
                                    {"--launcher=x"},
                                    {"--node-rank=0"},
                                    {"--plaintext"},
                                    {"--interfaces=eth0"},
                                    {"--rdzv-endpoint=a:1"},
                                    {"--rdzv-endpoint=a:x", "--node-rank=0"},
                                    {"--rdzv-endpoint=a:1", "--node-rank=2", "--nnodes=2"}};
  for (Words line : lines) {
    line.push_back("j.yaml");
    const absl::Status run = ParseCommandLine(line, NoEnvironment).status();
    EXPECT_FALSE(run.ok()) << line[0];
    for (const char* verb : {"validate", "plan"}) {
      Words words = line;
      words.insert(words.begin(), verb);
      EXPECT_EQ(ParseCommandLine(words, NoEnvironment).status(), run) << verb;
    }
  }
}

TEST(ValidateVerb, WritesTheJobOrTheErrors) {
  ValidateArgs args;
  args.job.job_file = LOCKSTEP_SOURCE_DIR "/examples/one-step.yaml";
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("name: one-step\n"));
  EXPECT_EQ(err.str(), "");
  args.job.sets = {"train.step=\"2"};
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 3);
  EXPECT_EQ(out.str(), "");
  EXPECT_THAT(err.str(), HasSubstr("did you mean 'steps'?"));
  args.common.output = Output::kJson;
  EXPECT_EQ(Validate(args, out, err), 3);
  EXPECT_THAT(out.str(),
              HasSubstr(R"({"schema":1,"ok":false,"errors":[{"file":"--set","line":0,)"));
  args.job.sets.clear();
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr(R"({"schema":1,"ok":true,"job":{"name":"one-step")"));
}

// The file's elastic bound of four workers stays, whatever the flags say: it is named.
TEST(ValidateVerb, FlagsAreAppliedBeforeTheRulesAreChecked) {
  ValidateArgs args;
  args.job.job_file = LOCKSTEP_SOURCE_DIR "/examples/fashion-mnist.yaml";
  args.job.nproc_per_node = ProcCount{ProcCount::Kind::kCount, 2};
  args.job.sets = {"train.shards=2", "elastic="};
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("nproc_per_node: 2\n"));
  EXPECT_THAT(out.str(), HasSubstr("shards: 2\n"));
  args.job.sets = {"train.shards=2"};
  EXPECT_EQ(Validate(args, out, err), 3);
  EXPECT_THAT(err.str(), HasSubstr("'elastic.max_workers' 4: 4 workers for 2 shards"));
  args.job.nproc_per_node = ProcCount{ProcCount::Kind::kCount, 8};
  args.job.sets.clear();
  err.str("");
  EXPECT_EQ(Validate(args, out, err), 5);
  EXPECT_THAT(err.str(), HasSubstr("8 workers for 4 shards"));
}

// It may be no host of the job on which its file is checked.
TEST(ValidateVerb, AWordForTheWorkersIsNotCountedHere) {
  ValidateArgs args;
  args.job.job_file = LOCKSTEP_SOURCE_DIR "/examples/fashion-mnist.yaml";
  for (const char* word : {"gpu", "cpu", "auto"}) {
    args.job.sets = {absl::StrCat("resources.nproc_per_node=", word)};
    std::ostringstream out, err;
    EXPECT_EQ(Validate(args, out, err), 0) << err.str();
    EXPECT_THAT(out.str(), HasSubstr(absl::StrCat("nproc_by: ", word, "\n")));
  }
  args.job.sets.clear();
  args.job.nproc_per_node = ProcCount{ProcCount::Kind::kGpu, 0};
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("nproc_by: gpu\n"));
}

TEST(ValidateVerb, HostsAreAppliedAsARunAppliesThem) {
  ValidateArgs args;
  args.job.job_file = LOCKSTEP_SOURCE_DIR "/examples/fashion-mnist.yaml";
  args.hosts.emplace().hosts = {{"a", 0}, {"b", 0}};
  args.job.nproc_per_node = ProcCount{ProcCount::Kind::kCount, 2};
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), AllOf(HasSubstr("nodes: 2\n"), HasSubstr("nproc_per_node: 2\n")));
  args.hosts->hosts = {{"a", 3}, {"b", 1}};
  args.job.nproc_per_node.reset();
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("ranks_per_node: [3, 1]\n"));
  args.hosts->hosts = {{"a", 4}, {"b", 1}};
  EXPECT_EQ(Validate(args, out, err), 5);
  EXPECT_THAT(err.str(), HasSubstr("5 workers for 4 shards"));
  args.hosts->hostfile = "/nowhere/hosts";
  EXPECT_EQ(Validate(args, out, err), 5);
  EXPECT_THAT(err.str(), HasSubstr("the host file /nowhere/hosts cannot be read"));
  args.hosts.reset();
  args.interfaces = "10.0.0.0/99";
  EXPECT_EQ(Validate(args, out, err), 3);
  EXPECT_THAT(err.str(), HasSubstr("10.0.0.0/99"));
}

}  // namespace
}  // namespace lockstep::launcher
