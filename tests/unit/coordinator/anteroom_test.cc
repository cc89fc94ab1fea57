// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/anteroom.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::coordinator {
namespace {

class AnteroomTest : public ::testing::Test {
 protected:
  AnteroomTest() : room_(*Anteroom::Create(&clock_)) {}

  // Somebody connects; returns the connection's number.
  uint64_t Connect(const std::string& host = "a") {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    struct stat status;
    EXPECT_EQ(fstat(ends[0], &status), 0);
    peers_.emplace_back(ends[1]);
    room_->Add(UniqueFd(ends[0]), status.st_ino, host);
    return status.st_ino;
  }
  // The newest one says something.
  void Speak() { ASSERT_EQ(write(peers_.back().get(), "x", 1), 1); }
  size_t Turns() {
    size_t turns = 0;
    for (UniqueFd& fd : room_->Turns()) {
      served_.push_back(std::move(fd));
      ++turns;
    }
    return turns;
  }
  bool HasNews() {
    pollfd fd = {room_->fd(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }
  // Whether the other end of connection number `i` (from 0) was closed.
  bool IsClosed(size_t i) {
    char byte;
    const ssize_t n = recv(peers_[i].get(), &byte, 1, 0);
    return n == 0 || (n < 0 && errno == ECONNRESET);  // what it said was not read
  }

  FakeClock clock_;
  std::vector<UniqueFd> peers_;
  std::vector<UniqueFd> served_;
  std::unique_ptr<Anteroom> room_;
};

TEST_F(AnteroomTest, WhoSpeaksIsServed) {
  Connect();
  EXPECT_FALSE(HasNews());
  EXPECT_EQ(Turns(), 0u);
  Speak();
  EXPECT_TRUE(HasNews());
  EXPECT_EQ(Turns(), 1u);
  EXPECT_FALSE(HasNews()) << "what it said is another's to read";
  char byte = 0;
  EXPECT_EQ(read(served_[0].get(), &byte, 1), 1);
}

TEST_F(AnteroomTest, WhoSaysNothingIsSentAway) {
  Connect();
  clock_.Advance(absl::Seconds(1));
  Connect();
  Speak();
  EXPECT_EQ(Turns(), 1u);
  EXPECT_EQ(room_->wake_at(), clock_.Now() + Anteroom::kSilence - absl::Seconds(1));
  clock_.Advance(Anteroom::kSilence - absl::Seconds(1));
  EXPECT_EQ(Turns(), 0u);
  EXPECT_TRUE(IsClosed(0));
  EXPECT_FALSE(IsClosed(1)) << "it is being served";
}

TEST_F(AnteroomTest, WhoHasGoneIsForgotten) {
  Connect();
  Speak();
  peers_.clear();
  EXPECT_EQ(Turns(), 0u);
  EXPECT_EQ(room_->wake_at(), clock_.Now() + Anteroom::kSilence) << "nobody waits";
}

TEST_F(AnteroomTest, APlaceIsFreeAfterTheFirstCallOrTheEnd) {
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < Turnstile::kAtFirst + 3; ++i) {
    ids.push_back(Connect());
    Speak();
  }
  EXPECT_EQ(Turns(), Turnstile::kAtFirst);
  EXPECT_EQ(Turns(), 0u);
  clock_.Advance(absl::Seconds(1));
  room_->Through(ids[0]);
  EXPECT_TRUE(HasNews());
  EXPECT_EQ(Turns(), 1u);
  served_[1].reset();  // its handshake has failed
  EXPECT_EQ(Turns(), 0u) << "that is not looked for all the time";
  clock_.Advance(absl::Seconds(0.1));
  EXPECT_LE(room_->wake_at(), clock_.Now() + absl::Seconds(0.1)) << "but soon";
  EXPECT_EQ(Turns(), 1u);
}

TEST_F(AnteroomTest, ClearClosesThoseThatWait) {
  Connect();
  Connect();
  Speak();
  room_->Clear();
  EXPECT_TRUE(IsClosed(0));
  EXPECT_TRUE(IsClosed(1));
  EXPECT_EQ(Turns(), 0u);
  EXPECT_EQ(room_->wake_at(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace lockstep::coordinator
