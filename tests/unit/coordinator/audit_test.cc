// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/fd.h"
#include "coordinator/service/revocations.h"

namespace lockstep::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(AuditTest, ALineSaysWhoDidWhat) {
  Requester who;
  who.set_user("ann");
  who.set_role(ROLE_SUBMIT);
  const std::string line = AuditLine({who, "scale", "j-1", "4 workers"},
                                     absl::NotFoundError("no such job"), absl::UnixEpoch());
  EXPECT_THAT(line, HasSubstr(R"("user":"ann","role":"submit")"));
  EXPECT_THAT(line, HasSubstr(R"("on":"j-1","detail":"4 workers","outcome":"not_found")"));
}

TEST(AuditTest, LongTextsAreClippedAndSaySo) {
  const std::string text(1'000'000, 'x');
  const std::string line =
      AuditLine({Requester(), "drain", text, text}, absl::InternalError(text), absl::UnixEpoch());
  EXPECT_LT(line.size(), 4096u);
  EXPECT_THAT(line, HasSubstr(R"-(x... (clipped: 1000000 bytes)","detail":)-"));
}

TEST(AuditTest, NoCharacterIsCut) {
  const std::string text = absl::StrCat(std::string(1023, 'x'), "\u00e9", "y");
  const std::string line =
      AuditLine({Requester(), "drain", text, ""}, absl::OkStatus(), absl::UnixEpoch());
  EXPECT_THAT(line, HasSubstr("x... (clipped: 1026 bytes)"));
  EXPECT_THAT(line, Not(HasSubstr("\xc3")));
}

class FolderTest : public testing::Test {
 protected:
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  static std::string NewFolder() {
    std::string folder = testing::TempDir() + "auditXXXXXX";
    return mkdtemp(folder.data());
  }
  static AuditEntry Entry(const std::string& user, const std::string& what,
                          const std::string& token = "t1", const std::string& peer = "10.0.0.1") {
    Requester who;
    who.set_user(user);
    who.set_role(ROLE_SUBMIT);
    who.set_token_id(token);
    who.set_peer(peer);
    return {who, what, "", ""};
  }

  const std::string folder_ = NewFolder();
  const std::string file_ = folder_ + "/audit.jsonl";
  FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
};

class RepeatedTest : public FolderTest {
 protected:
  // All lines that are left, of all files.
  std::vector<std::string> Lines() { return Lines(audit_); }
  std::vector<std::string> Lines(Audit& audit) {
    EXPECT_TRUE(audit.AwaitWritten().ok());
    std::vector<std::string> lines;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);) lines.push_back(line);
    }
    return lines;
  }

  Audit audit_{file_, &clock_, &clock_};
};

const absl::Status& MayNot() {
  static const auto* const status =
      new absl::Status(absl::PermissionDeniedError("role submit may not drain nodes"));
  return *status;
}

TEST_F(RepeatedTest, NobodyPushesAnEarlierRevocationOut) {
  // Five files of some 300 lines each.
  AuditWriter::Limits limits;
  limits.file_bytes = 64 << 10;
  Audit small(file_, &clock_, &clock_, limits);
  small.Note(Entry("root", "revoke_token", "t0"), absl::OkStatus());
  for (int i = 0; i < 100'000; ++i) {
    small.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  }
  EXPECT_THAT(Lines(small), Contains(HasSubstr(R"("what":"revoke_token")")));
  // As they would with a line each time.
  for (int i = 0; i < 2'000; ++i) small.Note(Entry("eve", "Coordinator/DrainNode"), MayNot());
  EXPECT_THAT(Lines(small), Not(Contains(HasSubstr(R"("what":"revoke_token")"))));
}

// A host has many addresses, and each of the jobs' workers a token.
TEST_F(RepeatedTest, ManyCallersAreCountedTogether) {
  for (int i = 0; i < 100'000; ++i) {
    const std::string worker = absl::StrCat("j.", i);
    audit_.NoteRepeated(Entry(worker, "renew_token", "", worker), absl::OkStatus());
  }
  const size_t lines = Lines().size();
  EXPECT_GE(lines, 4096u);
  EXPECT_LT(lines, 4096u + 18);
  // A day later there is room for others.
  clock_.Advance(absl::Hours(24));
  audit_.NoteRepeated(Entry("ann", "renew_token"), absl::OkStatus());
  EXPECT_THAT(Lines().back(), HasSubstr(R"("user":"ann")"));
}

TEST_F(RepeatedTest, TheFirstTimesHaveLinesAndThenEverFewer) {
  for (int i = 0; i < 1000; ++i) {
    audit_.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  }
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_THAT(lines[0], HasSubstr(R"("detail":"","outcome":"permission_denied")"));
  EXPECT_THAT(lines[1], HasSubstr(R"("detail":"2 times")"));
  EXPECT_THAT(lines[9], HasSubstr(R"("detail":"512 times")"));
  // Each call, token and address is counted by itself.
  audit_.NoteRepeated(Entry("eve", "Coordinator/UndrainNode"), MayNot());
  audit_.NoteRepeated(Entry("eve", "Coordinator/DrainNode", "t2"), MayNot());
  audit_.NoteRepeated(Entry("eve", "Coordinator/DrainNode", "t1", "10.0.0.2"), MayNot());
  EXPECT_EQ(Lines().size(), 13u);
  clock_.Advance(absl::Hours(24));
  audit_.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  EXPECT_THAT(Lines().back(), HasSubstr(R"("detail":"")"));
  EXPECT_EQ(Lines().size(), 14u);
}

// The time of day may be set while the coordinator runs; days are counted by the other clock.
TEST_F(FolderTest, LinesHaveTheTimeOfDay) {
  FakeClock wall{absl::UnixEpoch()};
  Audit audit(file_, &clock_, &wall);
  audit.Note(Entry("ann", "cancel"), absl::OkStatus());
  wall.Advance(absl::Hours(48));
  audit.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  audit.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  ASSERT_TRUE(audit.AwaitWritten().ok());
  std::ifstream in(file_);
  std::string lines[3];
  for (std::string& line : lines) std::getline(in, line);
  EXPECT_THAT(lines[0], HasSubstr(R"("time":"1970-01-01T00:00:00.000Z")"));
  EXPECT_THAT(lines[1], HasSubstr(R"("time":"1970-01-03T00:00:00.000Z")"));
  EXPECT_THAT(lines[2], HasSubstr(R"("detail":"2 times")"));
}

constexpr const char* kCall = "Access/RevokeToken";

// A file system that does not answer: a FIFO that nobody reads holds up who opens it.
class HangingTest : public FolderTest {
 protected:
  HangingTest() { EXPECT_EQ(::mkfifo(file_.c_str(), 0600), 0); }

  // From now on it answers.
  void Answer() { reader_.reset(::open(file_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)); }
  // What was written since. REQUIRES: Answer was called.
  std::vector<std::string> Read() {
    char bytes[1 << 16];
    const ssize_t n = ::read(reader_.get(), bytes, sizeof(bytes));
    return absl::StrSplit(std::string(bytes, n > 0 ? static_cast<size_t>(n) : 0), '\n',
                          absl::SkipEmpty());
  }

  UniqueFd reader_;
  AuditWriter::Limits limits_;
};

TEST_F(HangingTest, NobodyWaitsButForTheLineOfATokenAndNotForEver) {
  limits_.patience = absl::ZeroDuration();
  {
    Audit audit(file_, &clock_, &clock_, limits_);
    audit.Note(Entry("ann", "cancel"), absl::OkStatus());
    audit.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
    const absl::Status asked = audit.NoteAsked(Entry("root", "revoke_token"), kCall);
    EXPECT_TRUE(absl::IsUnavailable(asked)) << asked;
  }
  Answer();  // so that the thread ends
}

TEST_F(HangingTest, LinesComeWhenItAnswersAgain) {
  Audit audit(file_, &clock_, &clock_);
  audit.Note(Entry("ann", "cancel"), absl::OkStatus());
  Answer();
  EXPECT_TRUE(audit.NoteAsked(Entry("root", "revoke_token"), kCall).ok());
  EXPECT_THAT(Read(),
              ElementsAre(HasSubstr(R"("what":"cancel")"), HasSubstr(R"("what":"revoke_token")")));
}

// A restore that took one for carried out would leave a good token out.
TEST_F(HangingTest, ARevocationThatIsRefusedForWantOfItIsNone) {
  limits_.patience = absl::ZeroDuration();
  Audit audit(file_, &clock_, &clock_, limits_);
  AuditEntry entry = Entry("root", "revoke_token");
  entry.on = "t";
  EXPECT_TRUE(absl::IsUnavailable(audit.NoteAsked(entry, kCall)));
  // As who was refused does, over and over.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsUnavailable(audit.NoteAsked(entry, kCall)));
  Answer();
  std::vector<std::string> lines;
  while (lines.size() < 4) {
    pollfd written = {reader_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&written, 1, /*timeout=*/-1), 1);
    for (std::string& line : Read()) lines.push_back(std::move(line));
  }
  EXPECT_THAT(
      lines,
      ElementsAre(HasSubstr(R"("what":"revoke_token","on":"t","detail":"","outcome":"asked")"),
                  HasSubstr(R"("what":"revoke_token","on":"t","detail":"","outcome":"aborted")"),
                  HasSubstr(R"("what":"Access/RevokeToken","on":"t","detail":"")"),
                  HasSubstr(R"("what":"Access/RevokeToken","on":"t","detail":"2 times")")));
  const std::string copy = folder_ + "/copy";
  std::ofstream(copy) << absl::StrJoin(lines, "\n") << "\n";
  const auto revoked = RevokedTokens(copy);
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_THAT(*revoked, IsEmpty());
}

TEST_F(HangingTest, LinesThatFoundNoRoomAreCounted) {
  limits_.waiting_bytes = 1000;
  Audit audit(file_, &clock_, &clock_, limits_);
  for (int i = 0; i < 20; ++i) audit.Note(Entry("ann", "cancel"), absl::OkStatus());
  Answer();
  ASSERT_TRUE(audit.AwaitWritten().ok());
  audit.Note(Entry("ann", "hold"), absl::OkStatus());
  ASSERT_TRUE(audit.AwaitWritten().ok());
  const std::vector<std::string> lines = Read();
  ASSERT_GT(lines.size(), 3u);
  const size_t lost = 20 - (lines.size() - 2);
  EXPECT_THAT(lines[lines.size() - 2],
              HasSubstr(absl::StrCat(R"("detail":")", lost, R"( lines","outcome":"data_loss")")));
  EXPECT_THAT(lines.back(), HasSubstr(R"("what":"hold")"));
}

// What is refused has not happened, so no restore may miss a revocation that was carried out.
TEST_F(FolderTest, ADiskWithoutRoomForTheLineRefusesTheRequest) {
  Audit audit("/dev/full", &clock_, &clock_);
  audit.Note(Entry("ann", "cancel"), absl::OkStatus());
  const absl::Status asked = audit.NoteAsked(Entry("root", "revoke_token"), kCall);
  EXPECT_TRUE(absl::IsResourceExhausted(asked)) << asked;
  EXPECT_THAT(std::string(asked.message()), HasSubstr("cannot write the audit /dev/full"));
  EXPECT_TRUE(audit.AwaitWritten().ok());
}

TEST_F(FolderTest, AFileOnNoDiskTakesLinesThatAreWaitedFor) {
  Audit audit("/dev/null", &clock_, &clock_);
  EXPECT_TRUE(audit.NoteAsked(Entry("root", "revoke_token"), kCall).ok());
}

TEST_F(FolderTest, LinesThatTheDiskRefusedAreCounted) {
  const std::string later = folder_ + "/later", file = later + "/audit.jsonl";
  Audit audit(file, &clock_, &clock_);
  for (int i = 0; i < 3; ++i) audit.Note(Entry("ann", "cancel"), absl::OkStatus());
  const absl::Status asked = audit.NoteAsked(Entry("root", "revoke_token"), kCall);
  EXPECT_TRUE(absl::IsFailedPrecondition(asked)) << asked;
  ASSERT_TRUE(audit.AwaitWritten().ok());
  std::filesystem::create_directory(later);
  EXPECT_TRUE(audit.NoteAsked(Entry("root", "revoke_token"), kCall).ok());
  audit.Note(Entry("root", "revoke_token"), absl::OkStatus());
  ASSERT_TRUE(audit.AwaitWritten().ok());
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  EXPECT_THAT(
      lines, ElementsAre(HasSubstr(R"("what":"lose_lines","on":"","detail":"5 lines")"),
                         HasSubstr(R"("outcome":"asked")"),
                         HasSubstr(R"("what":"revoke_token","on":"","detail":"","outcome":"ok")")));
}

}  // namespace
}  // namespace lockstep::coordinator
