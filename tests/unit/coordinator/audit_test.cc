// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace lockstep::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
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

class RepeatedTest : public testing::Test {
 protected:
  ~RepeatedTest() override { std::filesystem::remove_all(folder_); }

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
  // All lines that are left, of all files.
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);) lines.push_back(line);
    }
    return lines;
  }

  const std::string folder_ = NewFolder();
  FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  Audit audit_{folder_ + "/audit.jsonl", &clock_};
};

const absl::Status& MayNot() {
  static const auto* const status =
      new absl::Status(absl::PermissionDeniedError("role submit may not drain nodes"));
  return *status;
}

TEST_F(RepeatedTest, NobodyPushesAnEarlierRevocationOut) {
  // Five files of some 300 lines each.
  Audit small(folder_ + "/audit.jsonl", &clock_, 64 << 10);
  small.Note(Entry("root", "revoke_token", "t0"), absl::OkStatus());
  for (int i = 0; i < 100'000; ++i) {
    small.NoteRepeated(Entry("eve", "Coordinator/DrainNode"), MayNot());
  }
  EXPECT_THAT(Lines(), Contains(HasSubstr(R"("what":"revoke_token")")));
  // As they would with a line each time.
  for (int i = 0; i < 2'000; ++i) small.Note(Entry("eve", "Coordinator/DrainNode"), MayNot());
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr(R"("what":"revoke_token")"))));
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

}  // namespace
}  // namespace lockstep::coordinator
