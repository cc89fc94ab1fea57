// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/revocations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/tokens.h"
#include "coordinator/outbox/request_rows.h"
#include "coordinator/service/audit.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RevocationsTest : public testing::Test {
 protected:
  ~RevocationsTest() override { std::filesystem::remove_all(folder_); }

  static std::string NewFolder() {
    std::string folder = testing::TempDir() + "revocationsXXXXXX";
    return mkdtemp(folder.data());
  }
  static AuditEntry Entry(const std::string& user, const std::string& id,
                          const std::string& what = "revoke_token") {
    Requester who;
    who.set_user(user);
    who.set_role(ROLE_SUBMIT);
    return {who, what, id, ""};
  }
  static std::string Asked(const std::string& id, const std::string& user = "ann") {
    return AskedLine(Entry(user, id), absl::UnixEpoch());
  }
  static std::string Answered(const std::string& id, const absl::Status& outcome,
                              const std::string& user = "ann") {
    return AuditLine(Entry(user, id), outcome, absl::UnixEpoch());
  }
  std::set<std::string> RevokedBy(std::initializer_list<std::string> lines) {
    const std::string path = folder_ + "/audit.jsonl";
    {
      std::ofstream file(path);
      for (const std::string& line : lines) file << line << "\n";
    }
    const auto ids = RevokedTokens(path);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::set<std::string>();
  }

  const std::string folder_ = NewFolder();
};

TEST_F(RevocationsTest, WhatWasDoneIsARevocation) {
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("t", absl::OkStatus())}), ElementsAre("t"));
  // An earlier version has no line before.
  EXPECT_THAT(RevokedBy({Answered("t", absl::OkStatus())}), ElementsAre("t"));
  EXPECT_THAT(RevokedBy({AskedLine(Entry("ann", "t", "create_token"), absl::UnixEpoch())}),
              IsEmpty());
}

// The coordinator ended before it answered: the next one carries out what is in the journal.
TEST_F(RevocationsTest, WhatWasAskedForAndNotRefusedMayHaveBeenDone) {
  EXPECT_THAT(RevokedBy({Asked("t")}), ElementsAre("t"));
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("t", absl::UnavailableError("it ends"))}),
              ElementsAre("t"));
}

TEST_F(RevocationsTest, WhatWasRefusedIsNone) {
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("t", absl::NotFoundError("no token"))}), IsEmpty());
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("t", absl::ResourceExhaustedError("no room"))}),
              IsEmpty());
}

TEST_F(RevocationsTest, ARefusalAnswersOneRequest) {
  const std::string refused = Answered("t", absl::NotFoundError("no token"));
  // Carried out by the next coordinator, which the repeated request finds done.
  EXPECT_THAT(RevokedBy({Asked("t"), Asked("t"), refused}), ElementsAre("t"));
  EXPECT_THAT(RevokedBy({Asked("t"), refused, Asked("t")}), ElementsAre("t"));
  EXPECT_THAT(RevokedBy({Asked("t"), refused, Asked("t"), refused}), IsEmpty());
  // Of somebody else, or of another token.
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("t", absl::NotFoundError("no token"), "bob")}),
              ElementsAre("t"));
  EXPECT_THAT(RevokedBy({Asked("t"), Answered("u", absl::NotFoundError("no token"))}),
              ElementsAre("t"));
}

// What finds no token of the caller's is refused without a line before it: the request before it,
// which broke off, may have been carried out meanwhile.
TEST_F(RevocationsTest, ARefusedCallAnswersNoRequest) {
  EXPECT_THAT(
      RevokedBy({Asked("t"), AuditLine(Entry("ann", "t", "Access/RevokeToken"),
                                       absl::NotFoundError("no token"), absl::UnixEpoch())}),
      ElementsAre("t"));
}

// A backup may have been made between the request and what it led to.
TEST_F(RevocationsTest, ATokenThatIsStillToBeMadeGoesToo) {
  const auto created = [](const std::string& id) {
    TokenCreated event;
    event.record.mutable_info()->set_id(id);
    return event;
  };
  std::vector<StoredRow> rows = {{TokenKey("t"), "a token", 1}, {TokenKey("u"), "a token", 1}};
  int64_t number = 0;
  for (const Event& event : {Event(created("v")), Event(created("w")),
                             Event(TokenRevoked{"v", Requester()}), Event(HoldRequested{"v"})}) {
    const Row row = RequestRow(++number, event);
    rows.push_back({row.key, row.value, 1});
  }
  EXPECT_EQ(RemoveTokens({"t", "v"}, rows), 2);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].key, TokenKey("u"));
  EXPECT_EQ(rows[1].key, RequestRow(2, created("w")).key);
}

}  // namespace
}  // namespace lockstep::coordinator
