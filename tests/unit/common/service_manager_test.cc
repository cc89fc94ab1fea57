// SPDX-License-Identifier: Apache-2.0
// What a service manager hears.
#include "common/service_manager.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A socket as a service manager has it; `path` begins with '@' for an abstract one.
UniqueFd Listen(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  return fd;
}

std::string Heard(const UniqueFd& fd) {
  char buffer[128];
  const ssize_t n = ::recv(fd.get(), buffer, sizeof(buffer), 0);
  return n < 0 ? "" : std::string(buffer, static_cast<size_t>(n));
}

TEST(ServiceManager, HearsBothKindsOfSockets) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/notify-", ::getpid());
  for (const std::string& path : {file, absl::StrCat("@lockstep-notify-", ::getpid())}) {
    const UniqueFd manager = Listen(path);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    TellServiceManager("READY=1");
    EXPECT_EQ(Heard(manager), "READY=1") << path;
  }
  ::unlink(file.c_str());
  ::unsetenv("NOTIFY_SOCKET");
}

TEST(ServiceManager, NoneOrOneThatIsGoneIsNoTrouble) {
  TellServiceManager("READY=1");
  for (const std::string& path :
       {std::string("/nowhere/notify"), std::string("relative"), std::string(200, '/')}) {
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    TellServiceManager("READY=1");
  }
  ::unsetenv("NOTIFY_SOCKET");
}

TEST(OriginOfProcess, SaysWhetherAContainerEndsWithIt) {
  const Origin first = {.pid = 1};
  const Origin of_a_shared_namespace = {.pid = 20, .parent = 0};
  const Origin of_an_init = {.pid = 7, .parent = 1, .init = "docker-init"};
  for (const Origin& origin : {first, of_a_shared_namespace, of_an_init}) {
    EXPECT_TRUE(EndsContainer(origin)) << origin.pid;
  }
  const Origin of_systemd_there = {.pid = 70, .parent = 1, .service_manager = true};
  const Origin of_a_shell_there = {.pid = 70, .parent = 60};
  const Origin of_supervisord_there = {.pid = 8, .parent = 1, .init = "supervisord"};
  const Origin of_the_hosts_init = {.pid = 700, .parent = 1, .of_host = true};
  for (const Origin& origin :
       {of_systemd_there, of_a_shell_there, of_supervisord_there, of_the_hosts_init}) {
    EXPECT_FALSE(EndsContainer(origin)) << origin.pid;
  }
  EXPECT_EQ(OriginOfProcess().pid, ::getpid());
  EXPECT_EQ(OriginOfProcess().parent, ::getppid());
}

}  // namespace
}  // namespace lockstep
