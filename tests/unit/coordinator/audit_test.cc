// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

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

}  // namespace
}  // namespace lockstep::coordinator
