// SPDX-License-Identifier: Apache-2.0
#include "common/service_manager.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>

#include "common/fd.h"

namespace lockstep {
namespace {

// Those that containers have for one program alone: Docker's, Podman's, Kubernetes' and others.
constexpr absl::string_view kInits[] = {"docker-init", "tini",  "catatonit",
                                        "dumb-init",   "pause", "podman-init"};
constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;  // Linux's PROC_PID_INIT_INO

}  // namespace

void TellServiceManager(absl::string_view state) {
  const char* path = ::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = ::strlen(path);
  if (length >= sizeof(address.sun_path)) return;
  ::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // of the abstract namespace
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  (void)::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                 reinterpret_cast<const sockaddr*>(&address), size);
}

Origin OriginOfProcess() {
  struct stat info {};
  Origin origin;
  origin.pid = ::getpid();
  origin.parent = ::getppid();
  origin.of_host = ::stat("/proc/self/ns/pid", &info) == 0 && info.st_ino == kFirstPidNamespace;
  std::ifstream("/proc/1/comm") >> origin.init;
  origin.service_manager = ::getenv("INVOCATION_ID") != nullptr;
  return origin;
}

bool EndsContainer(const Origin& origin) {
  if (origin.pid == 1) return true;
  if (origin.of_host || origin.service_manager) return false;
  return origin.parent == 0 ||
         (origin.parent == 1 &&
          std::find(std::begin(kInits), std::end(kInits), origin.init) != std::end(kInits));
}

}  // namespace lockstep
