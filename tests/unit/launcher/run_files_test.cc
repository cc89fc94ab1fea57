// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/file_sender.h"
#include "launcher/local_run/run_end.h"
#include "launcher/verbs/fetch.h"
#include "launcher/verbs/file_receiver.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFilesTest : public ::testing::Test {
 protected:
  RunFilesTest() : folder_(absl::StrCat(::testing::TempDir(), "/run-files-", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(run() + "/logs");
    fs::create_directories(run() + "/model");
    Write("job.yaml", "name: x");
    Write("logs/0.log", "zero");
    Write("logs/1.log", "");
    Write("model/model.safetensors", std::string(5 * kPieceBytes / 2, 'm'));
    Write("metrics.jsonl", "{}");
    Write(".hidden", "x");
    std::ofstream(folder_ + "/secret") << "secret";
    fs::create_symlink(folder_ + "/secret", run() + "/logs/2.log");
    fs::create_symlink(folder_, run() + "/up");
    ::mkfifo((run() + "/logs/pipe").c_str(), 0600);
    wanted_.set_job_id("a1b2");
    wanted_.set_submit_dir(folder_);
    wanted_.set_run_dir("runs/x-a1b2");
  }
  ~RunFilesTest() override { fs::remove_all(folder_); }

  std::string run() const { return folder_ + "/runs/x-a1b2"; }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(run() + "/" + name, std::ios::binary) << text;
  }
  std::vector<std::string> List() {
    const auto folder = OpenRunFolder(wanted_, "", "");
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *ListRunFiles(folder->get(), wanted_);
  }
  absl::StatusCode OpenCode() { return OpenRunFolder(wanted_, "", "").status().code(); }
  std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const std::string folder_;
  SendFiles wanted_;
};

TEST_F(RunFilesTest, WhatIsAskedForAndNoLinks) {
  wanted_.set_logs(true);
  EXPECT_THAT(List(), ElementsAre("logs/0.log", "logs/1.log"));
  wanted_.set_model(true);
  EXPECT_THAT(List(), ElementsAre("logs/0.log", "logs/1.log", "model/model.safetensors"));
  wanted_.set_all(true);
  EXPECT_THAT(List(), ElementsAre("job.yaml", "logs/0.log", "logs/1.log", "metrics.jsonl",
                                  "model/model.safetensors"));
}

TEST_F(RunFilesTest, NamesThatProgramsGiveTheirFiles) {
  std::string deep = "work";
  for (int i = 1; i < kMostRunFolders; ++i) absl::StrAppend(&deep, "/", i);
  fs::create_directories(run() + "/" + deep + "/deeper");
  const std::vector<std::string> names = {deep + "/last", "work/epoch=3-step=100.ckpt",
                                          "work/loss curve (käse).png", "work/~x+y@z,[1]",
                                          "work/" + std::string(NAME_MAX, 'n')};
  for (const std::string& name : names) Write(name, name);
  for (const char* name : {"/deeper/x", "/a\nb", "/.hydra"}) Write(deep + name, "left out");
  wanted_.set_all(true);
  const auto folder = OpenRunFolder(wanted_, "", "");
  FileReceiver receiver(folder_ + "/to");
  for (const std::string& name : List()) {
    ASSERT_TRUE(SendRunFile(folder->get(), name,
                            [&](const FilePiece& piece) { return receiver.Take(piece).ok(); })
                    .ok())
        << name;
  }
  EXPECT_EQ(receiver.names().size(), 5 + names.size());
  for (const std::string& name : names) EXPECT_EQ(Read(folder_ + "/to/" + name), name);
}

TEST_F(RunFilesTest, NoFolderThatIsNoRunsIsOpened) {
  EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
  const SendFiles good = wanted_;
  for (const char* run_dir : {"runs/../../x-a1b2", "/etc/x-a1b2", "runs/x", "runs/x-other", ""}) {
    wanted_.set_run_dir(run_dir);
    EXPECT_EQ(OpenCode(), absl::StatusCode::kInvalidArgument) << run_dir;
  }
  wanted_ = good;
  wanted_.set_run_dir("runs/y-a1b2");
  EXPECT_EQ(OpenCode(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(folder_ + "/runs/y-a1b2")) << "it is not made";
  fs::create_directory_symlink(folder_, folder_ + "/runs/y-a1b2");
  EXPECT_EQ(OpenCode(), absl::StatusCode::kFailedPrecondition);
  wanted_ = good;
  EXPECT_TRUE(OpenRunFolder(wanted_, run(), "").ok()) << "the agent's user named it";
}

TEST_F(RunFilesTest, AFileComesWholeOrNotAtAll) {
  wanted_.set_all(true);
  const auto folder = OpenRunFolder(wanted_, "", "");
  const std::string to = folder_ + "/to";
  {
    FileReceiver receiver(to);
    for (const std::string& name : List()) {
      const absl::Status sent = SendRunFile(folder->get(), name, [&](const FilePiece& piece) {
        EXPECT_LE(piece.data().size(), kPieceBytes);
        const absl::Status taken = receiver.Take(piece);
        EXPECT_TRUE(taken.ok()) << taken;
        return taken.ok();
      });
      EXPECT_TRUE(sent.ok()) << sent;
      EXPECT_EQ(Read(to + "/" + name), Read(run() + "/" + name));
    }
    EXPECT_TRUE(receiver.Finish().ok());
    EXPECT_EQ(receiver.names().size(), 5u);
  }
  // One piece is missing, another damaged.
  std::vector<FilePiece> pieces;
  ASSERT_TRUE(SendRunFile(folder->get(), "model/model.safetensors", [&](const FilePiece& piece) {
                pieces.push_back(piece);
                return true;
              }).ok());
  ASSERT_EQ(pieces.size(), 3u);
  fs::remove_all(to);
  {
    FileReceiver receiver(to);
    EXPECT_TRUE(receiver.Take(pieces[0]).ok());
    EXPECT_EQ(receiver.Take(pieces[2]).code(), absl::StatusCode::kDataLoss);
  }
  {
    FileReceiver receiver(to);
    FilePiece bad = pieces[0];
    (*bad.mutable_data())[5] ^= 1;
    EXPECT_EQ(receiver.Take(bad).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(receiver.Finish().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_TRUE(fs::is_empty(to + "/model")) << "nothing half is left";
}

TEST_F(RunFilesTest, ANodesNamesStayInTheFolder) {
  for (const char* name :
       {"../x", "/etc/passwd", "a/../../x", "", "a//b", ".x", "a/.b", "a\nb", "a\xff"}) {
    FilePiece piece;
    piece.set_name(name);
    piece.set_digest(PieceDigest(name, ""));
    FileReceiver receiver(folder_ + "/to");
    EXPECT_EQ(receiver.Take(piece).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST_F(RunFilesTest, ALinkThatTakesAFilesPlaceIsNotFollowed) {
  const auto folder = OpenRunFolder(wanted_, "", "");
  const auto nothing = [](const FilePiece&) { return true; };
  EXPECT_EQ(SendRunFile(folder->get(), "logs/2.log", nothing).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SendRunFile(folder->get(), "up/secret", nothing).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SendRunFile(folder->get(), "logs/pipe", nothing).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SendRunFile(folder->get(), "../x-a1b2/job.yaml", nothing).code(),
            absl::StatusCode::kInvalidArgument);
}

// Two hosts with one disk, one of which the job has left.
class SharedFiles : public coordinator::FilesClient {
 public:
  explicit SharedFiles(const std::string& folder) : folder_(folder) {}
  absl::StatusOr<FindFilesResponse> FindFiles(const FindFilesRequest&, absl::Duration) override {
    FindFilesResponse found;
    found.set_job_id("j");
    found.set_run_dir("runs/j");
    for (const char* id : {"a", "b"}) found.add_nodes()->set_node_id(id);
    found.add_left_nodes()->set_node_id("c");
    return found;
  }
  absl::Status Fetch(const FetchRequest& request,
                     std::function<absl::Status(const FilePiece&)> on_piece) override {
    const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (std::string name : {"logs/0.log", "logs/1.log"}) {
      // What the one that was left has alone.
      const bool own = request.node_id() == "c" && name == "logs/1.log";
      absl::Status taken;
      const absl::Status sent =
          SendRunFile(folder.get(), own ? "job.yaml" : name, [&](const FilePiece& piece) {
            FilePiece named = piece;
            named.set_name(name);
            named.set_digest(PieceDigest(name, piece.data()));
            taken = on_piece(named);
            return taken.ok();
          });
      if (!taken.ok()) return taken;
      if (!sent.ok()) return sent;
    }
    return absl::OkStatus();
  }
  void Stop() override {}

 private:
  const std::string folder_;
};

TEST_F(RunFilesTest, AFetchCountsWhatItHasWritten) {
  SharedFiles client(run());
  const std::string to = folder_ + "/to";
  const auto fetched = FetchFiles(&client, {.job = "j", .logs = true, .to = to});
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  int64_t files = 0, bytes = 0;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(to)) {
    if (!file.is_regular_file() || file.path().filename() == ".fetched") continue;
    ++files;
    bytes += static_cast<int64_t>(file.file_size());
  }
  EXPECT_EQ(files, 3) << "two logs, and what an earlier worker has left";
  EXPECT_EQ(fetched->files, files);
  EXPECT_EQ(fetched->bytes, bytes);
}

// One node has the model of job j, which is "new".
class OneModel : public coordinator::FilesClient {
 public:
  absl::StatusOr<FindFilesResponse> FindFiles(const FindFilesRequest&, absl::Duration) override {
    ++asked;
    FindFilesResponse found;
    found.set_job_id("j");
    found.set_run_dir("runs/j");
    FileNode* const node = found.add_nodes();
    node->set_node_id("a");
    node->set_has_model(true);
    return found;
  }
  absl::Status Fetch(const FetchRequest&,
                     std::function<absl::Status(const FilePiece&)> on_piece) override {
    FilePiece piece;
    piece.set_name("model/model.safetensors");
    piece.set_data("new");
    piece.set_size(3);
    piece.set_digest(PieceDigest(piece.name(), piece.data()));
    return on_piece(piece);
  }
  void Stop() override {}
  int asked = 0;
};

class ModelTest : public RunFilesTest {
 protected:
  // Returns the end of a job whose model, as it says, has the bytes of `text`.
  JobStatus Ended(const std::string& text) const {
    JobStatus ended;
    ended.set_job_id("j");
    ended.set_state(SUCCEEDED);
    ended.mutable_result()->set_model_path(model_);
    Sha256 hash;
    hash.Update(text.data(), text.size());
    ended.mutable_result()->set_model_sha256(hash.FinishHex());
    return ended;
  }
  const std::string model_ = run() + "/model/model.safetensors";
  OneModel client_;
};

TEST_F(ModelTest, WhatIsNotComparedIsNotKnown) {
  const auto stopped = [] { return false; };
  const std::string sha256 = Ended("new").result().model_sha256();
  EXPECT_EQ(LookForModel(model_, sha256, nullptr), ModelFound::kNotHere);
  EXPECT_EQ(LookForModel(model_, sha256, stopped), ModelFound::kNotCompared);
  EXPECT_EQ(LookForModel(model_, "", stopped), ModelFound::kHere) << "nothing to compare";
  EXPECT_EQ(LookForModel(run() + "/none", sha256, stopped), ModelFound::kNotHere);
  Write("model/model.safetensors", "new");
  EXPECT_EQ(LookForModel(model_, sha256, nullptr), ModelFound::kHere);
  int pieces = 0;
  Write("model/model.safetensors", std::string(4 << 20, 'm'));
  EXPECT_EQ(LookForModel(model_, sha256, [&] { return ++pieces < 3; }), ModelFound::kNotCompared);
}

TEST_F(ModelTest, OneThatASignalKeptFromBeingComparedIsNotMissed) {
  const BroughtModel brought = BringModel(&client_, Ended("new"), run(), [] { return false; });
  EXPECT_EQ(brought.said, "");
  EXPECT_FALSE(brought.interrupted);
  EXPECT_EQ(client_.asked, 0);
  fs::remove(model_);
  EXPECT_TRUE(BringModel(&client_, Ended("new"), run(), [] { return false; }).interrupted);
}

TEST_F(ModelTest, ThatOfAnotherRunIsReadOnce) {
  int pieces = 0;
  const BroughtModel brought =
      BringModel(&client_, Ended("new"), run(), [&] { return ++pieces > 0; });
  EXPECT_THAT(brought.said, HasSubstr("the model is in"));
  const int read = pieces - 1;  // asked once more before it is fetched
  pieces = 0;
  Write("model/model.safetensors", std::string(5 * kPieceBytes / 2, 'm'));
  EXPECT_EQ(
      LookForModel(model_, Ended("new").result().model_sha256(), [&] { return ++pieces > 0; }),
      ModelFound::kNotHere);
  EXPECT_EQ(read, pieces);
}

// Nothing else would end it: the client's Stop does not.
TEST_F(ModelTest, LookingAtAnotherFileInTheRunsFolderEnds) {
  JobStatus ended = Ended("new");
  ended.mutable_result()->set_model_path(run() + "/none");
  int asked = 0;
  const BroughtModel brought = BringModel(&client_, ended, run(), [&] { return ++asked < 2; });
  EXPECT_TRUE(brought.interrupted) << brought.said;
  EXPECT_EQ(client_.asked, 1);
}

TEST(FileSenderTest, OneThatEndsSaysWhoseFilesDoNotCome) {
  absl::Notification hangs, answers;
  FileSender::Settings settings;
  settings.open = [&]() -> std::unique_ptr<coordinator::FileStream> {
    hangs.Notify();
    answers.WaitForNotification();
    return nullptr;
  };
  FileSender sender(std::move(settings));
  SendFiles wanted;
  wanted.set_job_id("j");
  sender.Send(wanted);
  hangs.WaitForNotification();
  EXPECT_EQ(sender.Stop(absl::ZeroDuration()), "j");
  answers.Notify();
  EXPECT_EQ(sender.Stop(absl::Seconds(30)), "");
}

}  // namespace
}  // namespace lockstep::launcher
