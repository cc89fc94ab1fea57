// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/arguments.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/chaos.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/hosts_plan.h"
#include "launcher/local_run/ordered_guest.h"
#include "launcher/local_run/remote_hosts.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

std::string NoEnvironment(const std::string&) { return ""; }

template <typename T>
T Parse(const Words& words, const Environment& environment = NoEnvironment) {
  const auto command = ParseCommandLine(words, environment);
  EXPECT_TRUE(command.ok()) << command.status();
  if (!command.ok() || !std::holds_alternative<T>(*command)) {
    ADD_FAILURE() << "another verb";
    return T{};
  }
  return std::get<T>(*command);
}

TEST(Arguments, RunIsTheDefault) {
  const RunArgs args = Parse<RunArgs>({"--nproc_per_node", "4", "--set=train.epochs=1", "job.yaml",
                                       "--set", "name=x", "-o", "json", "--max-restarts=0"});
  EXPECT_EQ(args.job.job_file, "job.yaml");
  EXPECT_EQ(args.job.nproc_per_node->count, 4);
  EXPECT_EQ(args.common.output, Output::kJson);
  EXPECT_THAT(args.job.sets, ElementsAre("train.epochs=1", "name=x", "restart.max_restarts=0"));
  // Texts as they are, whatever YAML makes of them.
  const auto named = Parse<RunArgs>({"--name", "~", "--dump-tensors", "a\\new \"b\" #c", "j.yaml"});
  EXPECT_THAT(named.job.sets, ElementsAre("name=\"~\"", R"(debug.dump_tensors="a\\new \"b\" #c")"));
  EXPECT_EQ(Parse<RunArgs>({"run", "a.yaml"}).job.job_file, "a.yaml");
  EXPECT_EQ(Parse<RunArgs>({"--nproc-per-node=auto", "a.yaml"}).job.nproc_per_node->kind,
            ProcCount::Kind::kAuto);
  EXPECT_THAT(Parse<RunArgs>({"--nproc-per-node=2", "--", "python3", "--help"}).job.command,
              ElementsAre("python3", "--help"));
}

TEST(Arguments, WordsAreUtf8) {
  for (const Words& words : {Words{"--", "echo", "caf\xe9"}, Words{"eval", "caf\xe9"}}) {
    const auto command = ParseCommandLine(words, NoEnvironment);
    EXPECT_THAT(std::string(command.status().message()),
                HasSubstr("the word 'caf\\xe9' is not UTF-8"));
  }
  EXPECT_THAT(Parse<RunArgs>({"--", "echo", "café"}).job.command, ElementsAre("echo", "café"));
}

TEST(Arguments, ARunOnHosts) {
  const RunArgs args = Parse<RunArgs>({"--hosts=a,b:4,[fd00::2]:2,root@fd00::3", "--ssh",
                                       "ssh -p 2", "--launcher=/opt/launcher", "j.yaml"});
  ASSERT_TRUE(args.hosts.has_value());
  EXPECT_THAT(args.hosts->hosts,
              ElementsAre(HostSlots{"a", 0}, HostSlots{"b", 4}, HostSlots{"fd00::2", 2},
                          HostSlots{"root@fd00::3", 0}));
  EXPECT_EQ(args.hosts->ssh, "ssh -p 2");
  EXPECT_EQ(Parse<RunArgs>({"--hostfile", "h", "j.yaml"}).hosts->hostfile, "h");
  EXPECT_FALSE(Parse<RunArgs>({"j.yaml"}).hosts.has_value());
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--hosts=a,,b", "j.yaml"}, "is no host"},
      {{"--hosts=-oProxyCommand=x", "j.yaml"}, "is no host"},
      {{"--hosts=a:0", "j.yaml"}, "is no number of workers for host a"},
      {{"--hosts=a:", "j.yaml"}, "is no number of workers for host a"},
      {{"--hosts=a,a:2", "j.yaml"}, "host a is named twice"},
      {{"--hosts=a,b", "--nnodes=3", "j.yaml"}, "--hosts names 2"},
      {{"--hosts=a", "--hostfile=h", "j.yaml"}, "give one"},
      {{"--hosts=a", "--node-rank=0", "j.yaml"}, "this launcher starts the others"},
      {{"--hosts=a", "--nproc-per-node=gpu", "j.yaml"}, "takes a number with --hosts"},
      {{"--ssh=x", "j.yaml"}, "--ssh goes with --hosts"}};
  for (const auto& [words, expected] : cases) {
    EXPECT_THAT(std::string(ParseCommandLine(words, NoEnvironment).status().message()),
                HasSubstr(expected));
  }
}

TEST(Arguments, HostFiles) {
  const auto hosts =
      ParseHostFile("\xEF\xBB\xBF# all\n a  slots=2 # old\n\nb:3\r\nc\tslots=1", "hosts");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 3}, HostSlots{"c", 1}));
  // Written by an editor that puts a byte order mark at the beginning.
  EXPECT_TRUE(ParseHostFile("\xEF\xBB\xBFx\n", "hosts").ok());
  EXPECT_THAT(std::string(ParseHostFile("a\nb max_slots=3\n", "hosts").status().message()),
              HasSubstr("hosts:2: 'max_slots=3' is not understood"));
  EXPECT_THAT(std::string(ParseHostFile("#\n", "hosts").status().message()),
              HasSubstr("hosts names no host"));
}

TEST(RemoteHosts, WhatEntersThemHasToBeHere) {
  HostsArgs args;
  args.hosts = {HostSlots{"b", 1}};
  for (const char* missing : {"./no/such/ssh", "no-such-ssh -p 22", " "}) {
    args.ssh = missing;
    const absl::Status status = PlanHosts(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << missing;
    EXPECT_THAT(std::string(status.message()), HasSubstr("this host has no program '")) << missing;
  }
  args.ssh = "sh -c";
  const absl::StatusOr<HostsPlan> plan = PlanHosts(args);
  if (plan.ok()) EXPECT_EQ(plan->command, "sh -c");
  EXPECT_THAT(std::string(plan.status().message()), Not(HasSubstr("no program")));
}

TEST(RemoteHosts, WhatIsWrongWithAHostIsSaid) {
  std::string command = "ssh";
  const auto why = [&command](int code, const std::string& line) {
    return std::string(
        WhyNoPart("b", command, "/opt/launcher", {.code = code, .last_line = line}).message());
  };
  EXPECT_THAT(why(255, "Permission denied (publickey)."),
              AllOf(HasSubstr("host b cannot be entered: Permission denied (publickey)."),
                    HasSubstr("ssh -o BatchMode=yes b true")));
  EXPECT_THAT(why(127, ""), HasSubstr("host b has no launcher that can be run at /opt/launcher;"));
  EXPECT_THAT(why(2, "error: x"), HasSubstr("no launcher of this version: error: x;"));
  EXPECT_THAT(why(5, "no folder"), HasSubstr("host b takes no part: no folder (exit code 5)"));
  command = "/usr/bin/ssh -p 22";
  EXPECT_THAT(why(255, ""), HasSubstr("'/usr/bin/ssh -p 22 -o BatchMode=yes b true'"));
  command = "./enter";
  EXPECT_THAT(why(255, ""), HasSubstr("'./enter b true'"));
  EXPECT_THAT(EnterCommand("/usr/bin/ssh -p 22"),
              AllOf(Contains("BatchMode=yes"), Contains("-p"), Contains("ServerAliveInterval=5")));
  EXPECT_THAT(EnterCommand("enter  it"), ElementsAre("enter", "it"));
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
}

TEST(OrderedGuest, TakesAnOrderOutOfAPipe) {
  GuestOrder order;
  order.set_version("1");
  order.set_token("secret");
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const std::string text = EncodeOrder(order);
  ASSERT_EQ(::write(fds[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(ReadOrder(fds[0], absl::Seconds(100))->token(), "secret");
  for (const char* wrong : {"x\n", "99999999999\n", "3\nabc"}) {
    ASSERT_GT(::write(fds[1], wrong, strlen(wrong)), 0);
    EXPECT_EQ(ReadOrder(fds[0], absl::Seconds(100)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << wrong;
    int left = 0;
    for (::ioctl(fds[0], FIONREAD, &left); left > 0; --left) {
      char byte;
      ASSERT_EQ(::read(fds[0], &byte, 1), 1);
    }
  }
  ASSERT_EQ(::write(fds[1], "5\nab", 4), 4);
  ::close(fds[1]);
  EXPECT_TRUE(absl::IsUnavailable(ReadOrder(fds[0], absl::Seconds(100)).status()));
  ::close(fds[0]);
}

TEST(Arguments, AScriptTakesTheRestOfTheLine) {
  const RunArgs args = Parse<RunArgs>(
      {"--nproc_per_node=2", "--max-restarts", "3", "dir/train.py", "--tee", "a.yaml"});
  EXPECT_THAT(args.job.command, ElementsAre("python3", "-u", "dir/train.py", "--tee", "a.yaml"));
  EXPECT_EQ(args.job.nproc_per_node->count, 2);
  EXPECT_EQ(args.job.script, "dir/train.py");
  EXPECT_TRUE(args.job.job_file.empty());
  EXPECT_THAT(Parse<RunArgs>({"-m", "pkg.train", "-x"}).job.command,
              ElementsAre("python3", "-u", "-m", "pkg.train", "-x"));
  EXPECT_THAT(Parse<RunArgs>({"--no-python", "./a.sh", "--help"}).job.command,
              ElementsAre("./a.sh", "--help"));
  EXPECT_THAT(Parse<RunArgs>({"--", "a.sh", "-x"}).job.command, ElementsAre("a.sh", "-x"));
  EXPECT_THAT(Parse<SubmitArgs>({"submit", "train.py", "1"}).job.command,
              ElementsAre("python3", "-u", "train.py", "1"));
  const Environment python = [](const std::string& name) {
    return name == "PYTHON_EXEC" ? "/venv/python" : "";
  };
  EXPECT_EQ(Parse<RunArgs>({"train.py"}, python).job.command.front(), "/venv/python");
}

TEST(Arguments, UnderTorchrunsName) {
  const auto parse = [](const Words& words) {
    const auto command = ParseCommandLine(words, NoEnvironment, "torchrun");
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? std::get<RunArgs>(*command) : RunArgs{};
  };
  EXPECT_THAT(parse({"train", "x"}).job.command, ElementsAre("python3", "-u", "train", "x"));
  EXPECT_THAT(parse({"submit"}).job.command, ElementsAre("python3", "-u", "submit"));
  EXPECT_EQ(parse({"job.yaml"}).job.job_file, "job.yaml");
}

TEST(Arguments, TorchrunsFlags) {
  const RunArgs args = Parse<RunArgs>(
      {"--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--role=r", "-t", "3",
       "--shutdown-timeout=60", "--rdzv-conf", "join_timeout=90,timeout=3", "--monitor-interval=1",
       "--rdzv_id", "7", "train.py"});
  EXPECT_FALSE(args.rendezvous.has_value());
  EXPECT_THAT(args.job.sets, ElementsAre("start_timeout=90s", "env.ROLE_NAME=\"r\"",
                                         "env.TORCHELASTIC_RUN_ID=\"7\"", "preemption.grace=60s"));
  for (const auto& [given, means] :
       std::vector<std::pair<std::string, std::string>>{{"1000000", "1000000s"},
                                                        {"1234567", "1234567s"},
                                                        {"1e6", "1000000s"},
                                                        {"1.5", "1500ms"}})
    EXPECT_THAT(Parse<RunArgs>({"--rdzv-conf=join_timeout=" + given, "train.py"}).job.sets,
                ElementsAre("start_timeout=" + means));
  EXPECT_THAT(Parse<RunArgs>({"-r", "3", "train.py"}).job.sets, ElementsAre("logs.tee=none"));
  EXPECT_THAT(Parse<RunArgs>({"--local-ranks-filter=0", "train.py"}).job.sets,
              ElementsAre("logs.tee=0"));
  const RunArgs hosts = Parse<RunArgs>({"--nnodes=1:3", "--rdzv-endpoint=h", "train.py"});
  EXPECT_EQ(hosts.job.nodes, 3);
  EXPECT_EQ(hosts.job.least_nodes, 1);
  EXPECT_EQ(hosts.rendezvous->endpoint, "h:29400");
  EXPECT_FALSE(hosts.rendezvous->node_rank.has_value());
  const RunArgs master = Parse<RunArgs>(
      {"--nnodes=2", "--node-rank=1", "--master-addr=a", "--master-port=5", "train.py"});
  EXPECT_EQ(master.rendezvous->endpoint, "a:5");
  const RunArgs v6 = Parse<RunArgs>(
      {"--nnodes=2", "--node-rank=1", "--master-addr=fd00::2", "--master-port=5", "train.py"});
  EXPECT_EQ(v6.rendezvous->endpoint, "[fd00::2]:5");
  EXPECT_EQ(master.rendezvous->node_rank, 1);
}

TEST(Arguments, SetsComeBehindWhatTorchrunsFlagsMean) {
  const RunArgs args = Parse<RunArgs>({"--set", "a=b", "--role=r", "-t", "0", "-r", "3",
                                       "--shutdown-timeout=60", "--rdzv-conf=join_timeout=90",
                                       "--rdzv-id=7", "--set=preemption.grace=5s", "train.py"});
  EXPECT_THAT(args.job.sets, ElementsAre("start_timeout=90s", "env.ROLE_NAME=\"r\"",
                                         "env.TORCHELASTIC_RUN_ID=\"7\"", "preemption.grace=60s",
                                         "logs.tee=none", "a=b", "preemption.grace=5s"));
  const Environment variables = [](const std::string& name) {
    return name == "PET_LOCAL_RANKS_FILTER" ? "0" : name == "PET_ROLE" ? "v" : "";
  };
  EXPECT_THAT(Parse<RunArgs>({"--set=a=b", "train.py"}, variables).job.sets,
              ElementsAre("env.ROLE_NAME=\"v\"", "logs.tee=0", "a=b"));
}

TEST(Arguments, TorchrunsVariables) {
  const Environment kubeflow = [](const std::string& name) -> std::string {
    if (name == "PET_NNODES") return "2";
    if (name == "PET_NPROC_PER_NODE") return "8";
    if (name == "PET_NODE_RANK") return "0";
    if (name == "PET_MASTER_ADDR") return "first";
    if (name == "PET_MASTER_PORT") return "29500";
    if (name == "PET_NO_PYTHON") return "1";
    return "";
  };
  const RunArgs args = Parse<RunArgs>({"--nproc-per-node=4", "tool", "x"}, kubeflow);
  EXPECT_THAT(args.job.command, ElementsAre("tool", "x"));
  EXPECT_EQ(args.job.nproc_per_node->count, 4);
  EXPECT_EQ(args.job.nodes, 2);
  EXPECT_EQ(args.rendezvous->endpoint, "first:29500");
  EXPECT_EQ(args.rendezvous->node_rank, 0);
  const RunArgs file = Parse<RunArgs>({"job.yaml"}, kubeflow);
  EXPECT_EQ(file.job.job_file, "job.yaml");
  EXPECT_FALSE(file.job.nodes.has_value()) << "a job file is what it says";
}

TEST(Arguments, VerbsThatLookIntoAJob) {
  const PlanArgs plan =
      Parse<PlanArgs>({"plan", "j.yaml", "--nproc-per-node=2", "--dump", "dot", "--set", "a=b"});
  EXPECT_EQ(plan.job.job_file, "j.yaml");
  EXPECT_EQ(plan.job.nproc_per_node->count, 2);
  EXPECT_EQ(plan.dump, "dot");
  EXPECT_THAT(plan.job.sets, ElementsAre("a=b"));
  EXPECT_EQ(Parse<PlanArgs>({"plan", "j.yaml", "--device=cuda:h200"}).gpu, "h200");
  const PredictArgs predict = Parse<PredictArgs>(
      {"predict", "runs/m/model", "--inputs=x.npy", "--out=p.npy", "--threads=2"});
  EXPECT_EQ(predict.model, "runs/m/model");
  EXPECT_EQ(predict.inputs, "x.npy");
  EXPECT_EQ(predict.out, "p.npy");
  EXPECT_EQ(predict.threads, 2);
  EXPECT_EQ(Parse<EvalArgs>({"eval", "m", "--data", "j.yaml"}).data.job_file, "j.yaml");
  const CompareArgs compare =
      Parse<CompareArgs>({"compare", "--a=fused", "--b=portable", "--tolerance=1e-6", "--step=3",
                          "--shard=1", "j.yaml"});
  EXPECT_EQ(compare.b, "portable");
  EXPECT_EQ(compare.tolerance, 1e-6);
  EXPECT_EQ(Parse<CompareArgs>({"compare", "--a=fused", "--b=portable", "--tolerance=0", "j.yaml"})
                .tolerance,
            0);
  EXPECT_EQ(compare.step, 3);
  EXPECT_EQ(compare.shard, 1);
  const RunArgs run = Parse<RunArgs>(
      {"--profile-steps=2:3", "--profile-sort", "self", "--dump-tensors", "d e", "j.yaml"});
  EXPECT_THAT(run.job.sets, ElementsAre("profile.steps=\"2:3\"", "profile.sort=\"self\"",
                                        "debug.dump_tensors=\"d e\""));
}

TEST(Arguments, FlagsThatNameTheCoordinatorAreKeptForFurtherCommands) {
  const auto environment = [](const std::string& name) {
    return std::string(name == "LOCKSTEP_COORDINATOR" ? "b:2" : "");
  };
  EXPECT_EQ(Parse<ListArgs>({"list"}, environment).coordinator.flags, "");
  EXPECT_EQ(Parse<ListArgs>({"list", "--coordinator", "c:3", "--token-file=t"}).coordinator.flags,
            " --coordinator=c:3 --token-file=t");
}

TEST(Arguments, Generate) {
  const GenerateArgs plain = Parse<GenerateArgs>({"generate", "m"});
  // As a script has it whose variable is empty.
  EXPECT_EQ(Parse<GenerateArgs>({"generate", "m", "--prompt", ""}).prompt, "");
  EXPECT_EQ(Parse<GenerateArgs>({"generate", "m", "--prompt="}).prompt, "");
  EXPECT_EQ(plain.model, "m");
  EXPECT_EQ(plain.tokens, 200);
  EXPECT_EQ(plain.temperature, 1);
  const GenerateArgs args =
      Parse<GenerateArgs>({"generate", "m", "--prompt", "To be,", "--tokens=9", "--temperature=0",
                           "--top_k", "40", "--seed=18446744073709551615", "--threads=2"});
  EXPECT_EQ(args.prompt, "To be,");
  EXPECT_EQ(args.tokens, 9);
  EXPECT_EQ(args.temperature, 0);
  EXPECT_EQ(args.top_k, 40);
  EXPECT_EQ(args.seed, ~uint64_t{0});
  EXPECT_EQ(args.threads, 2);
}

TEST(Arguments, Bench) {
  const BenchArgs plain = Parse<BenchArgs>({"bench", "collectives"});
  EXPECT_EQ(plain.ranks, 2);
  EXPECT_EQ(plain.shards, 2);
  EXPECT_EQ(plain.operations.size(), 9u);
  const BenchArgs args =
      Parse<BenchArgs>({"bench", "collectives", "--nproc_per_node=3", "--shards=4", "-b", "1KiB",
                        "-e", "256MiB", "--factor=4", "--operations=barrier,memcpy"});
  EXPECT_EQ(args.ranks, 3);
  EXPECT_EQ(args.shards, 4);
  EXPECT_EQ(args.min_bytes, 1024);
  EXPECT_EQ(args.max_bytes, 256 << 20);
  EXPECT_EQ(args.factor, 4);
  EXPECT_THAT(args.operations, ElementsAre("barrier", "memcpy"));
}

TEST(Arguments, OtherVerbs) {
  EXPECT_FALSE(Parse<SubmitArgs>({"submit", "--coordinator=a:1", "--no-follow", "j.yaml"}).follow);
  EXPECT_TRUE(Parse<SubmitArgs>({"submit", "--coordinator=a:1", "--follow", "j.yaml"}).follow);
  const auto environment = [](const std::string& name) {
    return std::string(name == "LOCKSTEP_COORDINATOR" ? "b:2" : "");
  };
  EXPECT_EQ(Parse<ListArgs>({"list"}, environment).coordinator.address, "b:2");
  EXPECT_EQ(Parse<ListArgs>({"list", "--coordinator", "c:3"}, environment).coordinator.address,
            "c:3");
  const LogsArgs logs = Parse<LogsArgs>({"logs", "-f", "j-1", "--rank", "2"}, environment);
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(*logs.rank, 2);
  EXPECT_EQ(logs.job, "j-1");
  EXPECT_TRUE(Parse<CancelArgs>({"cancel", "--kill", "j"}, environment).kill);
  EXPECT_THAT(Parse<CancelArgs>({"cancel", "j", "k"}, environment).jobs, ElementsAre("j", "k"));
  for (const char* address : {"a:1,[::1]:2,10.0.0.1:3", "unix:socket", "unix-abstract:name"}) {
    EXPECT_EQ(Parse<ListArgs>({"list", "--coordinator", address}).coordinator.address, address);
  }
  // What asks no coordinator does not care.
  EXPECT_EQ(Parse<RunArgs>({"j.yaml"},
                           [](const std::string& name) {
                             return std::string(name == "LOCKSTEP_COORDINATOR" ? "nonsense" : "");
                           })
                .job.job_file,
            "j.yaml");
  EXPECT_EQ(*Parse<JoinArgs>({"join", "--slots=3"}, environment).slots, 3);
  EXPECT_EQ(Parse<DescribeArgs>({"describe", "j"}, environment).job, "j");
  EXPECT_EQ(Parse<ValidateArgs>({"validate", "j.yaml"}).job.job_file, "j.yaml");
  EXPECT_EQ(Parse<RunArgs>({"-"}).job.job_file, "-");
  EXPECT_EQ(Parse<EvalArgs>({"eval", "--data", "-", "model"}).data.job_file, "-");
  Parse<VersionArgs>({"--version"});
}

TEST(Arguments, DrainAndUndrain) {
  const DrainArgs drain = Parse<DrainArgs>({"drain", "--reason", "memory errors", "host7"});
  EXPECT_EQ(drain.node, "host7");
  EXPECT_EQ(drain.reason, "memory errors");
  EXPECT_EQ(Parse<UndrainArgs>({"undrain", "--coordinator=unix:/x", "host7"}).coordinator.address,
            "unix:/x");
}

TEST(Arguments, TheQueue) {
  const auto array = Parse<SubmitArgs>({"submit", "--array=0-2,7%2", "--after=a,b", "j.yaml"});
  EXPECT_EQ(array.array, (std::vector<int>{0, 1, 2, 7}));
  EXPECT_EQ(array.array_at_once, 2);
  EXPECT_EQ(array.after, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(array.follow);
  EXPECT_TRUE(Parse<HoldArgs>({"release", "j"}).release);
  EXPECT_EQ(Parse<JoinArgs>({"join", "--label=gpu=h100"}).labels.at("gpu"), "h100");
  EXPECT_EQ(Parse<ListArgs>({"list", "--state=pending,running"}).states.size(), 2u);
}

TEST(Arguments, HelpForEveryVerb) {
  EXPECT_EQ(Parse<HelpArgs>({"--help"}).verb, "");
  EXPECT_EQ(Parse<HelpArgs>({"submit", "--help"}).verb, "submit");
  EXPECT_EQ(Parse<HelpArgs>({"help", "logs"}).verb, "logs");
  // All places of a fault, which the complaint of a wrong one lists.
  const absl::Status wrong = chaos::Parse("kill", "rank:0@step:1/nowhere").status();
  for (const char* place : {"/start", "/reduce", "/reduced", "/committed", "/eval", "/save",
                            "/join", "/checkpoint", "/begun", "/best"}) {
    EXPECT_THAT(std::string(wrong.message()), HasSubstr(place));
    EXPECT_THAT(HelpText("chaos"), HasSubstr(place));
  }
  EXPECT_THAT(HelpText("run"), HasSubstr("torchrun's flags: docs/commands.md"));
  for (const std::string& verb : Verbs()) {
    const std::string text = HelpText(verb);
    EXPECT_THAT(text, HasSubstr("Usage: launcher")) << verb;
    EXPECT_THAT(text, HasSubstr("Example:\n  launcher")) << verb;
    EXPECT_THAT(text, HasSubstr("Exit codes:\n")) << verb;
    EXPECT_THAT(HelpText(""), HasSubstr("  " + verb));
  }
}

TEST(Arguments, EveryMistakeIsExplained) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--nproc-per-nod=4", "j.yaml"}, "did you mean '--nproc-per-node'?"},
      {{"generate"}, "takes one model, none is given"},
      {{"-q", "plan", "j.yaml"},
       "given are: plan j.yaml; a verb comes first: launcher plan [flags] ..."},
      {{"token", "create", "--user=ann"}, "--role is needed: submit, operate, admin, join"},
      {{"token", "create", "--user=ann", "--role=x"}, "--role x: expected submit, operate,"},
      {{"bench", "colectives"}, "it measures: collectives"},
      {{"bench", "collectives", "--operations=barier"}, "did you mean 'barrier'?"},
      {{"bench", "collectives", "--nproc-per-node=3", "--shards=2"}, "at least 3"},
      {{"bench", "collectives", "-b", "2MiB", "-e", "1MiB"}, "--max-bytes is less"},
      {{"bench", "collectives", "--nproc-per-node=4097"}, "--nproc-per-node 4097: at most 4096"},
      {{"generate", "m", "--tokens=-1"}, "--tokens -1: expected a whole number"},
      {{"generate", "m", "--temperature=warm"},
       "--temperature warm: expected a number from 0 to 1e6"},
      {{"generate", "m", "--temperature=nan"},
       "--temperature nan: expected a number from 0 to 1e6"},
      {{"generate", "m", "--top-k=1.5"}, "--top-k 1.5: expected a whole number"},
      {{"eval", "m", "--top-k=5"}, "'--top-k' goes with generate"},
      {{"--nproc-per-node=0", "j.yaml"}, "at least one worker"},
      {{"--nproc-per-node=-2", "j.yaml"}, "at least one worker"},
      {{"--nproc-per-node=two", "j.yaml"}, "expected a number of workers, auto, cpu or gpu"},
      {{"--nproc-per-node"}, "needs a value: N"},
      {{"--set=", "j.yaml"}, "needs a value: PATH=VALUE"},
      {{"--runs-dir=~/x", "j.yaml"},
       "'--runs-dir' has '~/x': the shell expands '~' behind a space"},
      {{"fetch", "j", "--to=~ann"}, "'./~ann' is a folder of that name"},
      {{"list", "--token-file", "~/x"}, "'--token-file' has '~/x': '~' in quotes is not expanded"},
      {{"generate", "m", "--prompt"}, "needs a value: TEXT"},
      {{"--quiet=1", "j.yaml"}, "takes no value"},
      {{"--rdzv-backend=c10d", "j.yaml"}, "is a flag of torchrun: there is one kind of rendezvous"},
      {{"--nnodes=2", "j.yaml"}, "--rdzv-endpoint=HOST:PORT and --node-rank=K"},
      {{"--rdzv_endpoint=h:1", "j.yaml"}, "needs --node-rank=K"},
      {{"--rdzv-endpoint=h", "--node-rank=0", "j.yaml"}, "expected HOST:PORT"},
      {{"--rdzv-endpoint=h:0", "--node-rank=0", "j.yaml"}, "expected HOST:PORT"},
      {{"--rdzv-endpoint=::1:5", "--node-rank=0", "j.yaml"}, "stands in brackets, as [::1]:7070"},
      {{"--rdzv-endpoint=h:1", "--nnodes=2", "--node-rank=2", "j.yaml"}, "it goes from 0 to 1"},
      {{"--node-rank=0", "j.yaml"}, "--node-rank goes with --rdzv-endpoint"},
      {{"--token-file=t", "j.yaml"}, "--token-file goes with --rdzv-endpoint"},
      {{"--nnodes=1:4", "j.yaml"}, "nodes: MAX} and elastic: {min_workers: LEAST}"},
      {{"a.yaml", "b.yaml"}, "takes one job file, given are: a.yaml b.yaml"},
      {{"run"}, "takes one job file, none is given"},
      {{"validate", "train.py"}, "launcher train.py"},
      {{"-m", "--no-python", "x"}, "do not go together"},
      {{"--nnodes=4:2", "train.py"}, "expected MIN:MAX"},
      {{"--nnodes=0", "train.py"}, "at least 1"},
      {{"--rdzv-backend=etcd", "train.py"}, "no other service is needed"},
      {{"--rdzv-conf=join_timeout", "train.py"}, "expected key=value"},
      {{"--rdzv-conf=join_timeout=1e12", "train.py"}, "--rdzv-conf join_timeout=1e12: "},
      {{"--tee=3", "j.yaml"}, "is a flag of torchrun"},
      {{"chaos", "--tee=3", "j.yaml"}, "is a flag of torchrun"},
      {{"j.yaml", "--", "ls"}, "not both"},
      {{"--"}, "no command after '--'"},
      {{"drain"}, "takes one node"},
      {{"undrain", "--reason=x", "n"}, "takes no '--reason'"},
      {{"hold"}, "takes one job"},
      {{"cancel"}, "one job or several"},
      {{"predict", "m", "--out=p.txt"}, "must end in .npy or .jsonl"},
      {{"list", "--coordinator=foo"}, "address 'foo'"},
      {{"list", "--coordinator=a:1,b:x"}, "address 'b:x'"},
      {{"list", "--coordinator=a:70000"}, "expected HOST:PORT, unix:/path"},
      {{"list", "--coordinator=a:1,fd00::2:7070"}, "stands in brackets, as [::1]:7070"},
      {{"join", "--coordinator=http://a:7070"}, "address 'http://a:7070'"},
      {{"logs", "--coordinator=unix:", "j"}, "address 'unix:'"},
      {{"list", "--state=waiting"}, "--state waiting: expected pending"},
      {{"usage", "--since=yesterday"}, "expected a day (UTC)"},
      {{"join", "--label=gpu"}, "expected KEY=VALUE"},
      {{"join", "--label=9=x"}, "expected KEY=VALUE"},
      {{"submit", "--array=3-1", "j.yaml"}, "--array 3-1: expected numbers"},
      {{"submit", "--array=1,1", "j.yaml"}, "each once"},
      {{"submit", "--array=0-3%0", "j.yaml"}, "so many at once"},
      {{"submit", "--wait", "--no-follow", "j.yaml"}, "give one"},
      {{"submit", "--follow", "--wait", "j.yaml"}, "without --no-follow, --wait and --array"},
      {{"submit", "-f", "--array=0-3", "j.yaml"}, "without --no-follow, --wait and --array"},
      {{"plan", "--dump=png", "j.yaml"}, "expected text or dot"},
      {{"plan", "--device=cuda", "j.yaml"}, "such as cuda:h200"},
      {{"plan", "--device=cuda:0", "j.yaml"}, "such as cuda:h200"},
      {{"compare", "--a=fused", "j.yaml"}, "needs two variants"},
      {{"compare", "--a=x", "--b=y", "--tolerance=-1", "j.yaml"}, "a number from 0 on"},
      {{"eval"}, "takes one model"},
      {{"eval", "m", "--set", "train.steps=1"}, "--data"},
      {{"eval", "--profile", "m"}, "takes no '--profile'"},
      {{"submti", "j.yaml"}, "did you mean 'submit'?"},
      {{"validate", "--", "ls"}, "takes no command"},
      {{"plan", "--", "ls"}, "takes no command"},
      {{"validate", "--no-follow", "j.yaml"}, "'--no-follow' goes with submit"},
      {{"describ", "j"}, "did you mean 'describe'?"},
      {{"list", "--slots=1"}, "'--slots' goes with join"},
      {{"list", "x"}, "takes no argument 'x'"},
      {{"logs", "--coordinator=a:1", "--rank=-1", "j"}, "--rank -1: expected a whole number"},
      {{"j.yaml", "-o", "xml"}, "expected table or json"},
      {{"j.yaml", "--log-level=inf"}, "did you mean 'info'?"},
      {{"--run-dir=a", "--runs-dir=b", "j.yaml"}, "give one"},
      {{"-x", "j.yaml"}, "unknown flag '-x'"},
      {{"help", "nothing"}, "no verb 'nothing'"},
      {{}, "name a job file"},
      {{""}, "is neither a verb nor a .yaml file"},
      {{"python3", "train.py"}, "a command stands behind '--': launcher -- python3 train.py"},
      {{"train", "job.yaml"}, "the job file alone trains: launcher JOB.yaml"},
  };
  for (const auto& [words, expected] : cases) {
    const auto command = ParseCommandLine(words, NoEnvironment);
    ASSERT_FALSE(command.ok()) << expected;
    EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(command.status().message()), HasSubstr(expected));
  }
}

TEST(ExitCodes, TableAndMappingAndDocumentAgree) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus(), Input::kCommandLine), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError(""), Input::kJobFile), 3);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError(""), Input::kCommandLine), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError(""), Input::kCommandLine), 4);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError(""), Input::kCommandLine), 5);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError(""), Input::kCommandLine), 5);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError(""), Input::kCommandLine), 5);
  EXPECT_EQ(ExitCodeOf(absl::UnauthenticatedError(""), Input::kCommandLine), 5);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError(""), Input::kCommandLine), 130);
  EXPECT_EQ(ExitCodeOf(absl::InternalError(""), Input::kCommandLine), 1);
  std::ifstream in(LOCKSTEP_SOURCE_DIR "/docs/exit_codes.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const ExitCodeEntry& entry : ExitCodeTable()) {
    EXPECT_THAT(text, HasSubstr("| " + entry.code + " | " + entry.meaning + " |"));
  }
}

}  // namespace
}  // namespace lockstep::launcher
