// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/socket_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "absl/time/time.h"
#include "common/fd.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

int OptionOf(int socket, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, option, &value, &size), 0);
  return value;
}

TEST(SocketIoTest, AnIdleConnectionLastsAsLongAsItsPeerMayBeSilent) {
  for (const int seconds : {1, 3, 5, 127, 128, 150, 300, 3600, 86400}) {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ProbeWhenIdle(socket.get(), absl::Seconds(seconds));
    const int between = OptionOf(socket.get(), TCP_KEEPINTVL);
    const int lasts = between * OptionOf(socket.get(), TCP_KEEPCNT);
    EXPECT_GE(lasts, seconds);
    EXPECT_LE(lasts, seconds <= 3 ? 3 : seconds + between) << seconds;
    EXPECT_EQ(between == 1, seconds <= 127) << seconds;
    EXPECT_EQ(OptionOf(socket.get(), TCP_KEEPIDLE), 1);
  }
}

}  // namespace
}  // namespace lockstep
