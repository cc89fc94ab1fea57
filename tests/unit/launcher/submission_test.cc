// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/submission.h"

#include <stdlib.h>
#include <unistd.h>

#include <climits>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/host.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/hosts_plan.h"
#include "launcher/verbs/validate.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

SubmitJobRequest Element(JobArgs args, int index) {
  args.array_index = index;
  const auto request = MakeSubmission(args, Counted::kByCoordinator);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *request : SubmitJobRequest();
}

TEST(SubmissionTest, ElementsOfAnArrayOfACommandHaveNamesOfTheirOwn) {
  JobArgs args;
  args.command = {"python3", "train.py", "--seed=${LOCKSTEP_ARRAY_INDEX}"};
  const JobSpec one = Element(args, 3).spec(), other = Element(args, 4).spec();
  EXPECT_EQ(one.name(), "train-3");
  EXPECT_EQ(other.name(), "train-4");
  EXPECT_THAT(one.run().command(), ElementsAre("python3", "train.py", "--seed=3"));
  EXPECT_EQ(one.env().at("LOCKSTEP_ARRAY_INDEX"), "3");
}

TEST(SubmissionTest, AnElementOfACommandIsNamedBySetWithItsNumber) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"name=sweep-${LOCKSTEP_ARRAY_INDEX}-lr"};
  EXPECT_EQ(Element(args, 0).spec().name(), "sweep-0-lr");
  EXPECT_EQ(Element(args, 12).spec().name(), "sweep-12-lr");
}

TEST(SubmissionTest, NamesOfElementsAreNoLongerThanNamesMayBe) {
  JobArgs args;
  args.job_file = std::string(70, 'a') + ".yaml";
  args.text = "run: 'true'\n";
  EXPECT_EQ(Element(args, 7).spec().name(), std::string(61, 'a') + "-7");
  EXPECT_EQ(Element(args, 17).spec().name(), std::string(60, 'a') + "-17");
  args.text = "name: " + std::string(61, 'b') + "\nrun: 'true'\n";
  EXPECT_EQ(Element(args, 7).spec().name(), std::string(61, 'b') + "-7");
  args.array_index = 17;
  const absl::Status refused = MakeSubmission(args).status();
  EXPECT_TRUE(IsDiagnostics(refused)) << refused;
  EXPECT_EQ(refused.message(), args.job_file + ": error: 'name' is '" + std::string(61, 'b') +
                                   "', of 61 characters: this element of the array is called that "
                                   "with '-17' behind it, and a name has 63 at most\n");
}

TEST(SubmissionTest, APipeIsReadOnceForAllElements) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = "name: x\nrun: 'true'\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  JobArgs args;
  args.job_file = "/dev/fd/" + std::to_string(ends[0]);
  args = WithText(args);
  ::close(ends[0]);
  for (const int index : {0, 1}) {
    EXPECT_EQ(Element(args, index).spec().name(), "x-" + std::to_string(index));
  }
}

TEST(SubmissionTest, AHiddenSecretIsTakenFromTheEnvironmentAgain) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"secrets.LOCKSTEP_TEST_TOKEN=\"***\""};
  const absl::Status missing = MakeSubmission(args).status();
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("secret LOCKSTEP_TEST_TOKEN, which its file shows as ***"));
  EXPECT_FALSE(IsDiagnostics(missing));
  ::setenv("LOCKSTEP_TEST_TOKEN", "hush", 1);
  auto request = MakeSubmission(args);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spec().secrets().at("LOCKSTEP_TEST_TOKEN"), "hush");
  ::setenv("LOCKSTEP_TEST_TOKEN", "hush\xe9", 1);
  EXPECT_THAT(std::string(MakeSubmission(args).status().message()),
              AllOf(HasSubstr("LOCKSTEP_TEST_TOKEN, from the environment, is not UTF-8"),
                    Not(HasSubstr("hush"))));
  ::unsetenv("LOCKSTEP_TEST_TOKEN");
}

// The bounds are those of the workers that take the place of the file's one.
TEST(SubmissionTest, BoundsAreNotThoseOfTheFilesWorkersWhereOthersReplaceThem) {
  ValidateArgs args;
  args.job.job_file = "x.yaml";
  args.job.text =
      "train:\n  model: {mlp: {hidden: [8]}}\n  data: {fashion_mnist: {}}\n  global_batch: 64\n"
      "  shards: 8\n  epochs: 1\n  optimizer: {sgd: {lr: 0.1}}\n"
      "elastic: {min_workers: 2, max_workers: 8}\n";
  const auto errors = [&] {
    const auto loaded = LoadJobOfRun(args, Counted::kByCoordinator);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->FormatErrors() + std::string(loaded->admission.message()) : "";
  };
  const auto refused = HasSubstr("'elastic.min_workers' is 2 and 'resources' asks for 1 worker");
  EXPECT_THAT(errors(), refused);
  using Kind = ProcCount::Kind;
  for (const Kind kind : {Kind::kGpu, Kind::kCpu, Kind::kAuto}) {
    args.job.nproc_per_node = ProcCount{kind, 0};
    EXPECT_EQ(errors(), "");
  }
  args.job.nproc_per_node.reset();
  args.hosts.emplace().hosts = {{"a", 4}, {"b", 4}};
  EXPECT_EQ(errors(), "");
  args.hosts->hosts = {{"a", 4}, {"b", 0}};
  EXPECT_EQ(errors(), "");
  // All else of the file is still checked.
  args.job.sets = {"elastic.max_workers=9"};
  EXPECT_THAT(errors(), HasSubstr("'elastic.max_workers' 9: 9 workers for 8 shards"));
}

// As many as the file asks for on a host are too many where they are there, and only then.
TEST(SubmissionTest, WorkersOfAHostAreThoseThatTakeThePlaceOfTheFiles) {
  ValidateArgs args;
  args.job.job_file = "x.yaml";
  const std::string text =
      "train:\n  model: {mlp: {hidden: [8]}}\n  data: {fashion_mnist: {}}\n  global_batch: 2048\n"
      "  shards: 1024\n  epochs: 1\n  optimizer: {sgd: {lr: 0.1}}\n"
      "resources: {nodes: 1, nproc_per_node: ";
  const auto errors = [&](const std::string& each) {
    args.job.text = text + each + "}\n";
    const auto loaded = LoadJobOfRun(args, Counted::kByCoordinator);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->FormatErrors() + std::string(loaded->admission.message()) : "";
  };
  const auto refused = HasSubstr("600 workers on one host: at most 512");
  EXPECT_THAT(errors("600"), refused);
  args.job.nproc_per_node = ProcCount{ProcCount::Kind::kCpu, 0};
  EXPECT_EQ(errors("600"), "");
  args.job.nproc_per_node.reset();
  args.hosts.emplace().hosts = {{"a", 300}, {"b", 300}};
  EXPECT_EQ(errors("600"), "");
  args.hosts->hosts = {{"a", 600}, {"b", 2}};
  EXPECT_THAT(errors("cpu"), refused);
  EXPECT_THAT(errors("4"), refused);
  args.hosts->hosts = {{"a", 2}, {"b", 0}};
  EXPECT_THAT(errors("600"), refused);
  args.hosts->hosts = {{"a", 0}};
  EXPECT_THAT(errors("600"), refused);
}

// validate and plan take no --array; what a job of one is they see by its first element.
TEST(SubmissionTest, AFileForAnArrayIsCheckedAsItsFirstElement) {
  ValidateArgs args;
  args.job.job_file = "x.yaml";
  args.job.text = "run: 'true'\nworkdir: /data/${LOCKSTEP_ARRAY_INDEX}\n";
  const std::string warning =
      "${LOCKSTEP_ARRAY_INDEX} is checked as 0, which 'submit --array' alone replaces";
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(err.str(), HasSubstr("warning: " + warning));
  EXPECT_THAT(out.str(), HasSubstr("workdir: \"/data/0\"\n"));
  args.common.output = Output::kJson;
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr(warning));
  // Who runs it names the element.
  const absl::Status refused = MakeSubmission(args.job).status();
  EXPECT_TRUE(IsDiagnostics(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'submit --array' alone replaces"));
  // Of a flag, and where something else is wrong.
  args.job.text = "run: 'true'\n";
  args.job.sets = {"workdir=/data/${LOCKSTEP_ARRAY_INDEX}"};
  EXPECT_EQ(Validate(args, out, err), 0) << err.str();
  args.job.text = "run: 'true'\nnmae: x\n";
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 3);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("nmae"), Not(HasSubstr("'submit --array'"))));
  // A command has it in its environment, and a job without it is as it was.
  args.common.output = Output::kTable;
  args.job.sets.clear();
  args.job.text = "run: 'echo ${LOCKSTEP_ARRAY_INDEX}'\n";
  out.str("");
  err.str("");
  EXPECT_EQ(Validate(args, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("echo ${LOCKSTEP_ARRAY_INDEX}"));
  EXPECT_EQ(err.str(), "");
}

TEST(SubmissionTest, DiagnosticsAreToldApart) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"nmae=x"};
  EXPECT_TRUE(IsDiagnostics(MakeSubmission(args).status()));
  EXPECT_FALSE(IsDiagnostics(absl::InvalidArgumentError("x")));
}

TEST(IsThisHostTest, ANameThatLeadsHereIsThisHosts) {
  const auto leads_to = [](const std::string& address) -> Resolver {
    return [address](const std::string& host) {
      EXPECT_EQ(host, "node7.cluster.example");
      return address.empty() ? std::vector<std::string>() : std::vector<std::string>{address};
    };
  };
  EXPECT_FALSE(IsThisHost("node7.cluster.example", leads_to("")));
  EXPECT_FALSE(IsThisHost("node7.cluster.example", leads_to("192.0.2.7"))) << "for documents alone";
  EXPECT_TRUE(IsThisHost("node7.cluster.example", leads_to("127.0.1.1")));
  for (const InterfaceAddress& own : SystemAddresses()) {
    EXPECT_TRUE(IsThisHost("node7.cluster.example", leads_to(own.address))) << own.address;
  }
}

TEST(IsThisHostTest, ItsOwnNamesNeedNoResolver) {
  const Resolver nobody = [](const std::string&) { return std::vector<std::string>(); };
  char full[HOST_NAME_MAX + 1] = {};
  ASSERT_EQ(::gethostname(full, sizeof(full) - 1), 0);
  for (const std::string& name : {std::string("localhost"), HostName(), std::string(full)}) {
    EXPECT_TRUE(IsThisHost(name, nobody)) << name;
  }
  EXPECT_FALSE(IsThisHost("node7.cluster.example", nobody));
}

// An alias of ssh is no name of the resolver's, which may not even answer.
TEST(NeedsNoEnteringTest, OnlyWhatMayBeThisHostIsResolved) {
  std::vector<std::string> asked;
  std::string address = "127.0.1.1";
  const Resolver resolve = [&](const std::string& host) {
    asked.push_back(host);
    return std::vector<std::string>{address};
  };
  for (const std::string& entered : {std::string("alias"), std::string("node7.cluster.example"),
                                     "ann@" + HostName(), "x" + HostName() + ".example"}) {
    EXPECT_FALSE(NeedsNoEntering(entered, resolve)) << entered;
  }
  for (const std::string& own : {std::string("localhost"), HostName()}) {
    EXPECT_TRUE(NeedsNoEntering(own, resolve)) << own;
  }
  EXPECT_THAT(asked, IsEmpty());
  const std::string full = HostName() + ".cluster.example";
  EXPECT_TRUE(NeedsNoEntering(full, resolve));
  EXPECT_THAT(asked, ElementsAre(full));
  address = "192.0.2.7";
  EXPECT_FALSE(NeedsNoEntering(full, resolve)) << "another one of this name";
  EXPECT_FALSE(NeedsNoEntering("192.0.2.7"));
  EXPECT_TRUE(NeedsNoEntering("127.0.0.1"));
  EXPECT_TRUE(NeedsNoEntering("::1"));
}

TEST(IsThisHostTest, AnAddressIsResolvedToItself) {
  EXPECT_TRUE(IsThisHost("127.0.0.1"));
  EXPECT_FALSE(IsThisHost("192.0.2.7"));
  EXPECT_TRUE(IsEndpointHere("[::1]:29500"));
  EXPECT_FALSE(IsEndpointHere("192.0.2.7:29500"));
}

}  // namespace
}  // namespace lockstep::launcher
