// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/handoff.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

bool Never() { return false; }
bool Gone() { return true; }
constexpr absl::Duration kLong = absl::Seconds(60);

FilePiece Piece(int number) {
  FilePiece piece;
  piece.set_name(absl::StrCat(number));
  return piece;
}

TEST(Handoff, EveryPieceInOrderThenTheEnd) {
  Handoff handoff;
  std::jthread giver([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(handoff.Give(Piece(i), Never));
    handoff.Close(absl::UnavailableError("broke off"));
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(handoff.Take(kLong, Never)->name(), absl::StrCat(i));
  EXPECT_EQ(handoff.Take(kLong, Never).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Handoff, NobodyWaitsForWhoIsGone) {
  Handoff handoff;
  EXPECT_EQ(handoff.Take(absl::ZeroDuration(), Never).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(handoff.Take(kLong, Gone).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(handoff.Give(Piece(1), Never));
  EXPECT_FALSE(handoff.Give(Piece(2), Gone)) << "nobody has taken the first one";
  std::jthread giver([&] { EXPECT_FALSE(handoff.Give(Piece(3), Never)); });
  handoff.Abandon();
}

}  // namespace
}  // namespace lockstep::coordinator
