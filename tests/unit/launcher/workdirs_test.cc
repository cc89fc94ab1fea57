// SPDX-License-Identifier: Apache-2.0
// How an agent comes by a job's workdir when its coordinator does not answer at once.
#include "launcher/agent/workdirs.h"

#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "coordinator/client/package_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/package/package.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers with these, the last one for ever.
class ScriptedPackages : public coordinator::PackagesClient {
 public:
  explicit ScriptedPackages(std::vector<absl::StatusOr<std::string>> answers)
      : answers_(std::move(answers)) {}
  absl::StatusOr<bool> Put(const std::string&, const std::string&, absl::Duration) override {
    return false;
  }
  absl::StatusOr<std::string> Get(const std::string&, absl::Duration) override {
    const absl::StatusOr<std::string> answer = answers_.front();
    if (answers_.size() > 1) answers_.erase(answers_.begin());
    return answer;
  }
  void Stop() override {}

 private:
  std::vector<absl::StatusOr<std::string>> answers_;
};

// Has packages, of which some do not come before they are let go.
class HeldPackages : public coordinator::PackagesClient {
 public:
  HeldPackages(std::map<std::string, std::string> packages, std::set<std::string> held)
      : packages_(std::move(packages)), held_(std::move(held)) {}
  absl::StatusOr<bool> Put(const std::string&, const std::string&, absl::Duration) override {
    return false;
  }
  absl::StatusOr<std::string> Get(const std::string& id, absl::Duration) override {
    absl::MutexLock lock(&mu_);
    ++asked_[id];
    ++all_asked_;
    most_ = std::max(most_, ++now_);
    const auto comes = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !held_.contains(id); };
    mu_.Await(absl::Condition(&comes));
    --now_;
    return packages_.at(id);
  }
  void Stop() override { LetGo(); }
  void LetGo() {
    absl::MutexLock lock(&mu_);
    held_.clear();
  }
  void LetGo(const std::string& id) {
    absl::MutexLock lock(&mu_);
    held_.erase(id);
  }
  void AwaitAsked(int times) {
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return all_asked_ >= times; };
    absl::MutexLock lock(&mu_, absl::Condition(&there));
  }
  int asked(const std::string& id) {
    absl::MutexLock lock(&mu_);
    return asked_[id];
  }
  int most_at_once() {
    absl::MutexLock lock(&mu_);
    return most_;
  }

 private:
  const std::map<std::string, std::string> packages_;
  absl::Mutex mu_;
  std::set<std::string> held_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> asked_ ABSL_GUARDED_BY(mu_);
  int all_asked_ ABSL_GUARDED_BY(mu_) = 0;
  int now_ ABSL_GUARDED_BY(mu_) = 0;
  int most_ ABSL_GUARDED_BY(mu_) = 0;
};

// What was done, in order.
class Done {
 public:
  void Add(const std::string& what, const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << what << ": " << status;
    absl::MutexLock lock(&mu_);
    names_.push_back(what);
  }
  std::vector<std::string> Await(size_t count) {
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return names_.size() >= count; };
    absl::MutexLock lock(&mu_, absl::Condition(&there));
    return names_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

class WorkdirsTest : public ::testing::Test {
 protected:
  WorkdirsTest() {
    char name[] = "/tmp/lockstep-workdirs-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path_ = name;
    fs::create_directory(path_ + "/in");
    std::ofstream(path_ + "/in/train.py") << "print(1)\n";
    package_ = *PackFolder(path_ + "/in");
  }
  ~WorkdirsTest() override { fs::remove_all(path_); }

  // What comes of the job's workdir when the coordinator answers so.
  absl::Status Prepared(std::vector<absl::StatusOr<std::string>> answers) {
    Workdirs::Settings settings;
    settings.client = std::make_unique<ScriptedPackages>(std::move(answers));
    settings.own_run_folder = true;
    settings.try_again = absl::ZeroDuration();
    return Prepared(std::move(settings), Assignment("j", 0, package_));
  }

  static absl::Status Prepared(Workdirs::Settings settings, const WorkerAssignment& assignment) {
    Workdirs workdirs(std::move(settings));
    absl::Status status;
    absl::Notification done;
    workdirs.Prepare(assignment, [&](const absl::Status& made) {
      status = made;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  WorkerAssignment Assignment(const std::string& job, int slot, const Package& package) const {
    WorkerAssignment assignment;
    assignment.set_job_id(job);
    assignment.set_incarnation(absl::StrCat(job, ".", slot, ".1"));
    assignment.set_run_dir(absl::StrCat(path_, "/run-", job));
    assignment.mutable_spec()->set_workdir(coordinator::PackageWorkdir(package.id));
    return assignment;
  }

  Package AnotherPackage(const std::string& name) const {
    fs::create_directory(path_ + "/" + name);
    std::ofstream(path_ + "/" + name + "/train.py") << "print('" << name << "')\n";
    return *PackFolder(path_ + "/" + name);
  }

  std::string path_;
  Package package_;
};

TEST_F(WorkdirsTest, ACoordinatorThatEndsMeanwhileHasASuccessor) {
  const absl::Status made =
      Prepared({absl::ResourceExhaustedError("others are served"),
                absl::UnavailableError("Socket closed"), absl::CancelledError(), package_.bytes});
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_TRUE(fs::exists(path_ + "/run-j/workdir/train.py"));
}

TEST_F(WorkdirsTest, AFolderThatAnotherMadeIsNoUsersWorkdir) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root's agent runs jobs as their users";
  ASSERT_EQ(::chmod(path_.c_str(), 01777), 0);
  const uid_t user = 65534, other = 20001;
  ASSERT_NE(::getpwnam("nobody"), nullptr);
  const auto prepared = [&] {
    Workdirs::Settings settings;
    settings.client = std::make_unique<ScriptedPackages>(
        std::vector<absl::StatusOr<std::string>>{package_.bytes, package_.bytes});
    settings.own_run_folder = true;
    settings.as_users = true;
    WorkerAssignment assignment = Assignment("j", 0, package_);
    assignment.set_user("nobody");
    return Prepared(std::move(settings), assignment);
  };
  const std::string run = path_ + "/run-j", workdir = run + "/workdir";
  const auto give = [](const std::string& folder, uid_t owner) {
    ASSERT_EQ(::chown(folder.c_str(), owner, owner), 0);
  };
  // A whole run's folder, and a workdir in the user's.
  fs::create_directories(workdir);
  std::ofstream(workdir + "/train.py") << "print('of another')\n";
  give(run, other);
  give(workdir, other);
  EXPECT_THAT(std::string(prepared().message()),
              HasSubstr("'" + run + "' was made by user 20001: remove it"));
  give(run, user);
  EXPECT_THAT(std::string(prepared().message()),
              HasSubstr("'" + workdir + "' was made by user 20001: remove it"));
  fs::remove_all(run);
  ASSERT_TRUE(prepared().ok());
  struct stat info {};
  ASSERT_EQ(::stat((workdir + "/train.py").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, user);
  EXPECT_TRUE(prepared().ok()) << "a second worker's";
}

TEST_F(WorkdirsTest, OneThatDoesNotHaveItIsBelieved) {
  const absl::Status made = Prepared({absl::NotFoundError("there is no such package"), ""});
  EXPECT_THAT(std::string(made.message()), HasSubstr("there is no such package"));
}

TEST_F(WorkdirsTest, ASlowOneHoldsUpNoOtherJob) {
  const Package large = AnotherPackage("large");
  auto owned = std::make_unique<HeldPackages>(
      std::map<std::string, std::string>{{large.id, large.bytes}, {package_.id, package_.bytes}},
      std::set<std::string>{large.id});
  HeldPackages* const packages = owned.get();
  Workdirs::Settings settings;
  settings.client = std::move(owned);
  settings.folder = path_ + "/kept";
  settings.own_run_folder = true;
  Workdirs workdirs(std::move(settings));
  Done done;
  const auto prepare = [&](const std::string& job, int slot, const Package& package) {
    const WorkerAssignment assignment = Assignment(job, slot, package);
    workdirs.Prepare(assignment, [&done, what = assignment.incarnation()](
                                     const absl::Status& made) { done.Add(what, made); });
  };
  for (int slot = 0; slot < 2 * Workdirs::kMostAtOnce; ++slot) prepare("slow", slot, large);
  for (const char* job : {"like-it", "like-it-too"}) prepare(job, 0, large);
  for (int slot = 0; slot < 3; ++slot) prepare("quick", slot, package_);
  EXPECT_THAT(done.Await(3), ElementsAre("quick.0.1", "quick.1.1", "quick.2.1"));
  EXPECT_FALSE(fs::exists(path_ + "/run-slow/workdir"));
  packages->LetGo();
  std::vector<std::string> all = done.Await(3 + 2 * Workdirs::kMostAtOnce + 2);
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const std::string& what) { return what.rfind("slow.", 0) != 0; }),
            all.end());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end())) << "a job's own are made in their order";
  EXPECT_EQ(packages->asked(large.id), 1) << "other jobs wait for the package that is on its way";
  for (const char* job : {"slow", "like-it", "like-it-too", "quick"}) {
    EXPECT_TRUE(fs::exists(path_ + "/run-" + job + "/workdir/train.py")) << job;
  }
}

TEST_F(WorkdirsTest, OneNodeTakesFewOfTheCoordinatorsPlaces) {
  std::map<std::string, std::string> bytes;
  std::vector<Package> all;
  for (int i = 0; i < 2 * Workdirs::kMostAtOnce; ++i) {
    all.push_back(AnotherPackage(absl::StrCat("package-", i)));
    bytes[all.back().id] = all.back().bytes;
  }
  auto owned = std::make_unique<HeldPackages>(bytes, std::set<std::string>{all.front().id});
  HeldPackages* const packages = owned.get();
  Workdirs::Settings settings;
  settings.client = std::move(owned);
  settings.folder = path_ + "/kept";
  settings.own_run_folder = true;
  Workdirs workdirs(std::move(settings));
  Done done;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string job = absl::StrCat("job-", i);
    workdirs.Prepare(Assignment(job, 0, all[i]),
                     [&done, job](const absl::Status& made) { done.Add(job, made); });
  }
  done.Await(all.size() - 1);
  packages->LetGo();
  done.Await(all.size());
  EXPECT_LE(packages->most_at_once(), Workdirs::kMostTransfers);
}

TEST_F(WorkdirsTest, TransfersHoldUpNoJobWhosePackageIsKept) {
  std::map<std::string, std::string> bytes = {{package_.id, package_.bytes}};
  std::vector<Package> slow;
  for (int i = 0; i < Workdirs::kMostAtOnce; ++i) {
    slow.push_back(AnotherPackage(absl::StrCat("package-", i)));
    bytes[slow.back().id] = slow.back().bytes;
  }
  std::set<std::string> held;
  for (const Package& package : slow) held.insert(package.id);
  auto owned = std::make_unique<HeldPackages>(bytes, held);
  HeldPackages* const packages = owned.get();
  Workdirs::Settings settings;
  settings.client = std::move(owned);
  settings.folder = path_ + "/kept";
  settings.own_run_folder = true;
  Workdirs workdirs(std::move(settings));
  Done done;
  const auto prepare = [&](const std::string& job, const Package& package) {
    workdirs.Prepare(Assignment(job, 0, package),
                     [&done, job](const absl::Status& made) { done.Add(job, made); });
  };
  prepare("first", package_);
  done.Await(1);
  for (size_t i = 0; i < slow.size(); ++i) prepare(absl::StrCat("slow-", i), slow[i]);
  prepare("second", package_);
  EXPECT_THAT(done.Await(2), ElementsAre("first", "second"));
  packages->LetGo();
  done.Await(2 + slow.size());
  EXPECT_LE(packages->most_at_once(), Workdirs::kMostTransfers);
}

TEST_F(WorkdirsTest, ThoseThatWaitForATransferKeepTheirOrder) {
  std::map<std::string, std::string> bytes = {{package_.id, package_.bytes}};
  std::vector<Package> all;
  for (const char* name : {"slow", "slower", "ranks", "last"}) {
    all.push_back(AnotherPackage(name));
    bytes[all.back().id] = all.back().bytes;
  }
  auto owned =
      std::make_unique<HeldPackages>(bytes, std::set<std::string>{all[0].id, all[1].id, all[3].id});
  HeldPackages* const packages = owned.get();
  Workdirs::Settings settings;
  settings.client = std::move(owned);
  settings.folder = path_ + "/kept";
  settings.own_run_folder = true;
  absl::Notification begins;
  absl::Notification ends;
  Workdirs workdirs(std::move(settings));
  Done done;
  const auto prepare = [&](const std::string& job, int rank, const Package& package) {
    const std::string what = absl::StrCat(job, ".", rank);
    workdirs.Prepare(Assignment(job, rank, package),
                     [&done, what](const absl::Status& made) { done.Add(what, made); });
  };
  prepare("kept", 0, package_);
  done.Await(1);
  prepare("slow", 0, all[0]);
  prepare("slower", 0, all[1]);
  packages->AwaitAsked(3);
  workdirs.Prepare(Assignment("busy", 0, package_), [&](const absl::Status&) {
    begins.Notify();
    ends.WaitForNotification();
  });
  begins.WaitForNotification();
  // One thread is left: it has looked at all when it comes to the last one.
  for (int rank = 0; rank < 3; ++rank) prepare("ranks", rank, all[2]);
  prepare("last", 0, all[3]);
  prepare("idle", 0, package_);
  done.Await(2);
  packages->LetGo(all[0].id);
  std::vector<std::string> ranks = done.Await(6);
  ranks.erase(std::remove_if(ranks.begin(), ranks.end(),
                             [](const std::string& what) { return what.rfind("ranks.", 0) != 0; }),
              ranks.end());
  EXPECT_THAT(ranks, ElementsAre("ranks.0", "ranks.1", "ranks.2"));
  ends.Notify();
  packages->LetGo();
  done.Await(8);
}

TEST_F(WorkdirsTest, WhatIsUnderWayAtTheEndIsBrokenOff) {
  auto owned = std::make_unique<HeldPackages>(std::map<std::string, std::string>{{package_.id, ""}},
                                              std::set<std::string>{package_.id});
  Workdirs::Settings settings;
  settings.client = std::move(owned);
  settings.own_run_folder = true;
  {
    Workdirs workdirs(std::move(settings));
    for (const char* job : {"a", "b"}) {
      workdirs.Prepare(Assignment(job, 0, package_), [](const absl::Status&) {});
    }
  }
  EXPECT_FALSE(fs::exists(path_ + "/run-b"));
}

TEST_F(WorkdirsTest, WhatDoesNotComeBackAtTheEndIsNamed) {
  absl::Notification hangs, answers;
  Workdirs::Settings settings;
  settings.client = std::make_unique<HeldPackages>(
      std::map<std::string, std::string>{{package_.id, ""}}, std::set<std::string>{});
  settings.own_run_folder = true;
  Workdirs workdirs(std::move(settings));
  workdirs.Prepare(Assignment("a", 0, package_), [&](const absl::Status&) {
    hangs.Notify();
    answers.WaitForNotification();
  });
  hangs.WaitForNotification();
  EXPECT_THAT(workdirs.Stop(absl::ZeroDuration()), ::testing::ElementsAre("a"));
  answers.Notify();
  EXPECT_THAT(workdirs.Stop(absl::Seconds(30)), ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::launcher
