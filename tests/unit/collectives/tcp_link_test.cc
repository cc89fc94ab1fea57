// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/link.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "collectives/tcp/socket_io.h"
#include "common/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

Connection Over(int socket) {
  Connection connection;
  connection.rank = 1;
  connection.socket = UniqueFd(socket);
  return connection;
}

TEST(LinkTest, AnEndWithoutAnErrorIsAClosedConnection) {
  int pair[2];
  LS_CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  Link link(Over(pair[0]), 1);
  link.TakeRest();
  EXPECT_EQ(link.HowItEnded().code(), absl::StatusCode::kUnavailable) << "it has not ended";
  ::close(pair[1]);
  link.TakeRest();
  EXPECT_EQ(link.HowItEnded().code(), absl::StatusCode::kUnavailable);
}

// Whoever cannot be reached has not died for that.
TEST(LinkTest, TheNetworksErrorIsKept) {
  // One that was never connected has an error to say.
  Link link(Over(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 1);
  link.TakeRest();
  EXPECT_EQ(link.HowItEnded().code(), absl::StatusCode::kDeadlineExceeded) << link.HowItEnded();
}

TEST(AllowConnectionsTest, TheSoftLimitIsRaisedAndTheHardOneSaid) {
  rlimit before{};
  LS_CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  LS_CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(AllowConnections(10, 20).ok());
  rlimit now{};
  LS_CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, 64u);
  EXPECT_TRUE(AllowConnections(10, 90).ok());
  LS_CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, 100u);
  LS_CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max == RLIM_INFINITY) return;
  const absl::Status status = AllowConnections(10, static_cast<int64_t>(before.rlim_max));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("ulimit -Hn"));
}

}  // namespace
}  // namespace lockstep
