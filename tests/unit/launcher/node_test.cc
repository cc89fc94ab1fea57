// SPDX-License-Identifier: Apache-2.0
// What an agent keeps and makes on its host: its id and run folders.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/client/package_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_file.h"
#include "launcher/agent/account.h"
#include "launcher/agent/devices.h"
#include "launcher/agent/identity.h"
#include "launcher/agent/run_folder.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Folder : public ::testing::Test {
 protected:
  Folder() {
    char name[] = "/tmp/lockstep-node-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path = name;
  }
  ~Folder() override { fs::remove_all(path); }
  static std::string Read(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  static mode_t Mode(const std::string& file) {
    struct stat info {};
    EXPECT_EQ(::lstat(file.c_str(), &info), 0) << file;
    return info.st_mode & 0777;
  }
  std::string path;
};
using NodeIdentityTest = Folder;
using RunFolderTest = Folder;

TEST_F(NodeIdentityTest, TheIdIsKept) {
  const std::string folder = path + "/state/agent";
  std::string id;
  {
    const auto first = OpenNodeIdentity(folder, "tiger");
    ASSERT_TRUE(first.ok()) << first.status();
    id = first->node_id;
    EXPECT_THAT(id, StartsWith("tiger-"));
    EXPECT_EQ(Mode(folder), 0700u);
  }
  const auto again = OpenNodeIdentity(folder, "renamed");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->node_id, id);
  const auto other = OpenNodeIdentity(path + "/other", "tiger");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->node_id, id);
}

TEST_F(NodeIdentityTest, AFolderThatWasThereKeepsItsMode) {
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  ASSERT_TRUE(OpenNodeIdentity(path, "tiger").ok());
  EXPECT_EQ(Mode(path), 0755u);
  EXPECT_EQ(Mode(path + "/lock"), 0600u);
}

TEST_F(NodeIdentityTest, ASecondAgentIsRefusedAndToldWhatToDo) {
  const auto first = OpenNodeIdentity(path, "tiger");
  ASSERT_TRUE(first.ok());
  const auto second = OpenNodeIdentity(path, "tiger");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr(absl::StrCat("process ", ::getpid())),
                                               HasSubstr(path), HasSubstr("--state-dir")));
}

TEST_F(NodeIdentityTest, AFullDiskIsNoReasonToStayAway) {
  const std::string folder = path + "/state";
  std::string id;
  {
    const auto first = OpenNodeIdentity(folder, "tiger");
    ASSERT_TRUE(first.ok()) << first.status();
    id = first->node_id;
  }
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto second = OpenNodeIdentity(folder, "tiger");
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->node_id, id);
}

TEST_F(NodeIdentityTest, ADamagedIdIsNotReplacedSilently) {
  std::ofstream(path + "/node-id") << "../../etc\n";
  const auto identity = OpenNodeIdentity(path, "tiger");
  EXPECT_THAT(identity.status().message(), HasSubstr("remove it"));
}

TEST(StateFolderTest, Defaults) {
  const auto with = [](const std::string& state, const std::string& home) {
    return [=](const char* name) { return std::string(name) == "HOME" ? home : state; };
  };
  EXPECT_EQ(*DefaultStateFolder("h", false, with("/s", "/home/u")), "/s/lockstep/agent-h");
  EXPECT_EQ(*DefaultStateFolder("h", true, with("", "/root")), "/var/lib/lockstep/agent-h");
  EXPECT_EQ(*DefaultStateFolder("h", false, with("relative", "/home/u")),
            "/home/u/.local/state/lockstep/agent-h");
  EXPECT_THAT(DefaultStateFolder("h", false, with("", "")).status().message(),
              HasSubstr("--state-dir"));
}

TEST(PlainNameTest, WhatMayBeAPartOfAPath) {
  for (const char* good : {"a", "fashion-mnist", "v1.2_3", "..a"}) EXPECT_TRUE(IsPlainName(good));
  for (const char* bad : {"", ".", "..", "a/b", "a b", "a\n", "\x1b[2J", "\xC3\xBC"}) {
    EXPECT_FALSE(IsPlainName(bad)) << bad;
  }
  EXPECT_FALSE(IsPlainName(std::string(256, 'a')));
}

TEST(AssignmentTest, OnlyWhatACoordinatorMakesIsAccepted) {
  WorkerAssignment good;
  good.set_job_id("a1b2");
  good.set_incarnation("a1b2.0.1");
  good.set_submit_dir("/home/u");
  good.set_run_dir("runs/mnist-a1b2");
  EXPECT_TRUE(CheckAssignment(good).ok());
  const auto refused = [&](const std::function<void(WorkerAssignment&)>& change) {
    WorkerAssignment bad = good;
    change(bad);
    return CheckAssignment(bad).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& a) { a.set_job_id("../a"); }));
  EXPECT_TRUE(refused([](auto& a) { a.set_incarnation("a\x1b[2J"); }));
  EXPECT_TRUE(refused([](auto& a) { a.set_slot(-1); }));
  EXPECT_TRUE(refused([](auto& a) { a.set_submit_dir("tmp"); }));
  for (const char* run : {"", "/etc/cron.d", "../x", "runs/../../x", "runs//x", "runs/a b"}) {
    EXPECT_TRUE(refused([&](auto& a) { a.set_run_dir(run); })) << run;
  }
}

// An assignment of a run in `path`.
WorkerAssignment Assignment(const std::string& path) {
  WorkerAssignment assignment;
  assignment.set_job_id("a1");
  assignment.set_slot(3);
  assignment.set_submit_dir(path);
  assignment.set_run_dir("runs/mnist-a1");
  assignment.mutable_spec()->set_name("mnist");
  (*assignment.mutable_spec()->mutable_secrets())["TOKEN"] = "hunter2";
  return assignment;
}

TEST_F(RunFolderTest, IsMadeForItsUserAlone) {
  const mode_t before = ::umask(0);
  const auto log = OpenRunLog(Assignment(path), /*own=*/false);
  ::umask(before);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(::write(log->get(), "x\n", 2), 2);
  const std::string run = path + "/runs/mnist-a1";
  EXPECT_EQ(Read(run + "/logs/3.log"), "x\n");
  EXPECT_EQ(Mode(run), 0700u);
  EXPECT_EQ(Mode(run + "/logs"), 0700u);
  EXPECT_EQ(Mode(run + "/logs/3.log"), 0600u);
  EXPECT_EQ(Mode(run + "/job.yaml"), 0600u);
  EXPECT_THAT(Read(run + "/job.yaml"), AllOf(HasSubstr("TOKEN"), Not(HasSubstr("hunter2"))));
  EXPECT_TRUE(OpenRunLog(Assignment(path), false).ok());  // a second worker, a later life
}

TEST_F(RunFolderTest, AnotherJobsFileAndWorkdirAreNotTakenForThisJobs) {
  WorkerAssignment former = Assignment(path), now = Assignment(path);
  former.mutable_spec()->set_name("former-of-a-longer-name");
  now.set_job_id("b2");
  const std::string mine = path + "/mine";
  for (WorkerAssignment* assignment : {&former, &now}) {
    assignment->set_run_dir(mine);
    assignment->mutable_spec()->set_workdir(coordinator::PackageWorkdir(std::string(64, 'a')));
    ASSERT_TRUE(OpenRunLog(*assignment, /*own=*/true).ok());
    ASSERT_TRUE(OpenRunLog(*assignment, /*own=*/true).ok());  // another worker
  }
  EXPECT_EQ(Read(mine + "/job.yaml"), job::ToYaml(former.spec()));
  EXPECT_FALSE(fs::exists(mine + "/job-a1.yaml"));
  EXPECT_EQ(Read(mine + "/job-b2.yaml"), job::ToYaml(now.spec()));
  // Where the submitter's own is known, it is what can be submitted again.
  former.set_workdir("code");
  former.set_run_dir(path + "/again");
  ASSERT_TRUE(OpenRunLog(former, /*own=*/true).ok());
  EXPECT_THAT(Read(path + "/again/job.yaml"), testing::HasSubstr("\nworkdir: code\n"));
  former.set_run_dir(mine);
  EXPECT_EQ(WorkFolder(former), path + "/mine/workdir-a1");
  EXPECT_EQ(WorkFolder(now), path + "/mine/workdir-b2");
}

TEST_F(RunFolderTest, TheUsersOwnJobFileInTheFolderStays) {
  WorkerAssignment assignment = Assignment(path);
  assignment.set_run_dir(path + "/mine");
  fs::create_directories(path + "/mine");
  std::ofstream(path + "/mine/job.yaml") << "# my notes\n";
  ASSERT_TRUE(OpenRunLog(assignment, /*own=*/true).ok());
  EXPECT_EQ(Read(path + "/mine/job.yaml"), "# my notes\n");
  EXPECT_EQ(Read(path + "/mine/job-a1.yaml"), job::ToYaml(assignment.spec()));
}

TEST_F(RunFolderTest, LinksInTheRunsFolderAreNotFollowed) {
  const std::string run = path + "/runs/mnist-a1", elsewhere = path + "/elsewhere";
  fs::create_directories(elsewhere);
  fs::create_directories(path + "/runs");
  // The folder itself.
  fs::create_symlink(elsewhere, run);
  EXPECT_THAT(OpenRunLog(Assignment(path), false).status().message(), HasSubstr("symbolic link"));
  fs::remove(run);
  // logs/.
  fs::create_directories(run);
  fs::create_symlink(elsewhere, run + "/logs");
  EXPECT_FALSE(OpenRunLog(Assignment(path), false).ok());
  fs::remove(run + "/logs");
  // A log, and a pipe in its place.
  fs::create_directories(run + "/logs");
  fs::create_symlink(elsewhere + "/stolen", run + "/logs/3.log");
  EXPECT_THAT(OpenRunLog(Assignment(path), false).status().message(), HasSubstr("symbolic link"));
  fs::remove(run + "/logs/3.log");
  ASSERT_EQ(::mkfifo((run + "/logs/3.log").c_str(), 0600), 0);
  EXPECT_FALSE(OpenRunLog(Assignment(path), false).ok());
  fs::remove(run + "/logs/3.log");
  // The job file is replaced, not written through a link.
  fs::remove(run + "/job.yaml");
  fs::create_symlink(elsewhere + "/stolen", run + "/job.yaml");
  EXPECT_TRUE(OpenRunLog(Assignment(path), false).ok());
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(RunFolderTest, OnTheWayThereOnlyLinksOfTheOwnUserAreFollowed) {
  fs::create_directories(path + "/big-disk");
  fs::create_symlink("big-disk", path + "/runs");
  EXPECT_TRUE(OpenRunLog(Assignment(path), false).ok());
  EXPECT_TRUE(fs::exists(path + "/big-disk/mnist-a1/logs/3.log"));
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make links of other users";
  ASSERT_EQ(::lchown((path + "/runs").c_str(), 65534, 65534), 0);
  EXPECT_THAT(OpenRunLog(Assignment(path), false).status().message(),
              HasSubstr("runs is a symbolic link of another user"));
  // A folder that the agent's own user names may be reached through anything.
  WorkerAssignment own = Assignment(path);
  own.set_run_dir(path + "/runs/mine");
  EXPECT_TRUE(OpenRunLog(own, /*own=*/true).ok());
}

// The folders of jobs of users' own where other users can make some, too.
class RunFolderOfAUserTest : public RunFolderTest {
 protected:
  static constexpr uid_t kUser = 65534, kOther = 20001;

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root's agent runs jobs as their users";
    ASSERT_EQ(::chmod(path.c_str(), 01777), 0);
    MakeFolder(runs, 0, 01777);
  }

  static void MakeFolder(const std::string& folder, uid_t owner, mode_t mode) {
    fs::create_directories(folder);
    ASSERT_EQ(::chown(folder.c_str(), owner, owner), 0);
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
  }

  // What comes of the user's job in `runs`, which the agent's user named if `own`.
  absl::Status Open(bool own) const {
    WorkerAssignment assignment = Assignment(path);
    if (own) assignment.set_run_dir(run);
    AsAccount as;
    LS_RETURN_IF_ERROR(as.Become(Account{"user", "/", kUser, kUser, {kUser}}));
    return OpenRunLog(assignment, own).status();
  }

  void ExpectRefused(const std::string& what, const std::string& why) const {
    for (const bool own : {false, true}) {
      const absl::Status opened = Open(own);
      EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << what << ": " << opened;
      EXPECT_THAT(opened.message(), AllOf(HasSubstr("'" + what + "'"), HasSubstr(why)));
    }
  }

  const std::string runs = path + "/runs", run = runs + "/mnist-a1";
};

TEST_F(RunFolderOfAUserTest, IsTheUsersOwn) {
  for (const bool own : {true, true, false}) ASSERT_TRUE(Open(own).ok()) << Open(own);
  // What a job of another's left there is no matter of an agent that has no users.
  MakeFolder(run, kOther, 0700);
  EXPECT_TRUE(OpenRunLog(Assignment(path), /*own=*/false).ok());
}

TEST_F(RunFolderOfAUserTest, WhatAnotherMadeThereIsNotTaken) {
  MakeFolder(run, kOther, 0777);
  ExpectRefused(run, "was made by user 20001: remove it");
  MakeFolder(run, kUser, 0777);
  for (const char* name : {"logs", "errors"}) {
    MakeFolder(run + "/" + name, kOther, 0777);
    ExpectRefused(run + "/" + name, "was made by user 20001: remove it");
    MakeFolder(run + "/" + name, kUser, 0700);
  }
  const std::string log = run + "/logs/3.log";
  std::ofstream(log) << "";
  ASSERT_EQ(::chown(log.c_str(), kOther, kOther), 0);
  ASSERT_EQ(::chmod(log.c_str(), 0666), 0);
  EXPECT_THAT(Open(true).message(), HasSubstr(log + "' was made by user 20001: remove it"));
  EXPECT_THAT(Open(false).message(), HasSubstr(log + "' was made by user 20001: remove it"));
  EXPECT_EQ(Read(log), "");
}

TEST_F(RunFolderOfAUserTest, IsNoLink) {
  MakeFolder(path + "/home", kUser, 0700);
  fs::create_symlink(path + "/home", run);
  ASSERT_EQ(::lchown(run.c_str(), kOther, kOther), 0);
  for (const bool own : {false, true}) {
    EXPECT_EQ(Open(own).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Open(own).message(), AllOf(HasSubstr(run), HasSubstr("symbolic link")));
  }
  EXPECT_TRUE(fs::is_empty(path + "/home"));
}

TEST_F(RunFolderOfAUserTest, NobodyElseCanPutAnotherInItsPlace) {
  MakeFolder(runs, kOther, 0777);
  for (const bool own : {false, true}) {
    EXPECT_THAT(Open(own).message(), HasSubstr("in which runs lie, was made by user 20001"));
  }
  for (const mode_t mode : {0777, 0770}) {
    MakeFolder(runs, 0, mode);
    ASSERT_EQ(::chown(runs.c_str(), 0, kUser), 0);
    for (const bool own : {false, true}) EXPECT_THAT(Open(own).message(), HasSubstr("chmod +t"));
  }
  MakeFolder(runs, kUser, 0777);
  EXPECT_THAT(Open(true).message(), HasSubstr("chmod +t")) << "though it is the user's";
  MakeFolder(runs, kUser, 0755);
  EXPECT_TRUE(Open(true).ok()) << Open(true);
}

TEST_F(RunFolderTest, AFolderThatIsNotThereIsNamed) {
  WorkerAssignment assignment = Assignment(path + "/nowhere");
  EXPECT_THAT(OpenRunLog(assignment, false).status().message(),
              AllOf(HasSubstr("cannot make the run's folder"), HasSubstr(path + "/nowhere")));
}

WorkerAssignment OnGpu(const std::string& job, const std::string& uuid) {
  WorkerAssignment assignment;
  assignment.set_job_id(job);
  assignment.mutable_device()->set_uuid(uuid);
  return assignment;
}

TEST(DevicesTest, AGpuThatIsNotHereIsRefused) {
  const std::vector<Gpu> gpus = {{.uuid = "GPU-a"}};
  EXPECT_TRUE(CheckDevice(OnGpu("j", ""), {}).ok());
  EXPECT_TRUE(CheckDevice(OnGpu("j", "GPU-a"), gpus).ok());
  EXPECT_THAT(CheckDevice(OnGpu("j", "GPU-b"), gpus).message(), HasSubstr("GPU-b"));
}

TEST(DevicesTest, AGpuThatTwoJobsHaveIsNamed) {
  const WorkerAssignment own = OnGpu("j", "GPU-a"), other = OnGpu("k", "GPU-a");
  WorkerAssignment meant = OnGpu("k", "GPU-a");
  meant.mutable_device()->set_shared(true);
  EXPECT_EQ(SharedWithAnotherJob(own, {&own}), "");
  EXPECT_THAT(SharedWithAnotherJob(own, {&other}), HasSubstr("k and j"));
  EXPECT_EQ(SharedWithAnotherJob(meant, {&own}), "");
  const WorkerAssignment cpu = OnGpu("j", ""), cpu_too = OnGpu("k", "");
  EXPECT_EQ(SharedWithAnotherJob(cpu, {&cpu_too}), "");
}

}  // namespace
}  // namespace lockstep::launcher
