// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/address.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace lockstep::coordinator {

absl::Status CheckListenAddress(absl::string_view address) {
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "unix:") || absl::ConsumePrefix(&name, "unix-abstract:")) {
    if (name.empty() || name.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("'", address, "': a socket's name has 1 to ",
                                                     sizeof(sockaddr_un::sun_path) - 1,
                                                     " characters"));
    }
    return absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not 'unix:/path', 'unix-abstract:name' or 'host:port'"));
  }
  const absl::string_view host = address.substr(0, colon);
  if (host == "localhost" || host == "[::1]" ||
      (absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == host.npos)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "'", address, "' can be reached from other machines: that needs TLS and a token, ",
      "which this version cannot do yet; listen on a Unix socket or 127.0.0.1"));
}

absl::Status CheckFree(absl::string_view address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) return absl::OkStatus();
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::OkStatus();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("'", address, "' is in use: another coordinator listens there"));
}

}  // namespace lockstep::coordinator
