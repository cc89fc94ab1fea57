// SPDX-License-Identifier: Apache-2.0
// How an agent comes by a job's workdir when its coordinator does not answer at once.
#include "launcher/agent/workdirs.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "coordinator/client/package_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/package/package.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
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
    Workdirs workdirs(std::move(settings));
    WorkerAssignment assignment;
    assignment.set_job_id("j");
    assignment.set_incarnation("j.0.1");
    assignment.set_run_dir(path_ + "/run-j");
    assignment.mutable_spec()->set_workdir(coordinator::PackageWorkdir(package_.id));
    absl::Status status;
    absl::Notification done;
    workdirs.Prepare(assignment, [&](const absl::Status& made) {
      status = made;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
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

TEST_F(WorkdirsTest, OneThatDoesNotHaveItIsBelieved) {
  const absl::Status made = Prepared({absl::NotFoundError("there is no such package"), ""});
  EXPECT_THAT(std::string(made.message()), HasSubstr("there is no such package"));
}

}  // namespace
}  // namespace lockstep::launcher
