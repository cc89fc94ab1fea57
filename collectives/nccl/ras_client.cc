// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/ras_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr const char* kDefaultAddress = "localhost:28028";
constexpr size_t kLongestReport = 1 << 20;

class RasConnection {
 public:
  RasConnection(std::string address, absl::Time deadline)
      : address_(std::move(address)), deadline_(deadline) {}

  absl::Status Connect() {
    const size_t colon = address_.rfind(':');
    if (colon == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", address_, "' is not host:port"));
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(address_.substr(0, colon).c_str(), address_.substr(colon + 1).c_str(), &hints,
                      &found) != 0) {
      return Failed("there is no such host");
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      fd_ = UniqueFd(::socket(each->ai_family, each->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                              each->ai_protocol));
      if (!fd_.valid()) continue;
      if (::connect(fd_.get(), each->ai_addr, each->ai_addrlen) == 0) return absl::OkStatus();
      int error = errno;
      if (error == EINPROGRESS && Wait(POLLOUT).ok()) {
        socklen_t size = sizeof(error);
        ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error == 0) return absl::OkStatus();
      }
    }
    return Failed("nobody listens there");
  }

  absl::Status Write(const std::string& text) {
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::send(fd_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        LS_RETURN_IF_ERROR(Wait(POLLOUT));
      } else if (errno != EINTR) {
        return Failed("the connection broke");
      }
    }
    return absl::OkStatus();
  }

  // Up to and with the next end of line; to the end of the stream when `all`.
  absl::StatusOr<std::string> Read(bool all) {
    while (all || !absl::StrContains(pending_, '\n')) {
      char buffer[4096];
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (n > 0) {
        pending_.append(buffer, static_cast<size_t>(n));
        if (pending_.size() > kLongestReport) return Failed("the answer has no end");
      } else if (n == 0) {
        if (all) break;
        return Failed("the connection was closed");
      } else if (errno == EAGAIN) {
        LS_RETURN_IF_ERROR(Wait(POLLIN));
      } else if (errno != EINTR) {
        return Failed("the connection broke");
      }
    }
    const size_t end = all ? pending_.size() : pending_.find('\n') + 1;
    std::string text = pending_.substr(0, end);
    pending_.erase(0, end);
    return text;
  }

  absl::Status Failed(const std::string& why) const {
    return absl::UnavailableError(absl::StrCat("NCCL's RAS at ", address_, ": ", why));
  }

 private:
  absl::Status Wait(short events) {
    pollfd waits{fd_.get(), events, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - Clock::Real()->Now());
    const int ready = ::poll(&waits, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60000)));
    if (ready > 0 || (ready < 0 && errno == EINTR)) return absl::OkStatus();
    return Failed("no answer in time");
  }

  const std::string address_;
  const absl::Time deadline_;
  UniqueFd fd_;
  std::string pending_;
};

}  // namespace

absl::StatusOr<std::string> QueryRas(const std::string& address, absl::Time deadline) {
  RasConnection connection(address, deadline);
  LS_RETURN_IF_ERROR(connection.Connect());
  LS_RETURN_IF_ERROR(connection.Write("CLIENT PROTOCOL 2\n"));
  LS_ASSIGN_OR_RETURN(const std::string hello, connection.Read(false));
  if (!absl::StartsWithIgnoreCase(hello, "SERVER PROTOCOL ")) {
    return connection.Failed("it is not NCCL that answers");
  }
  // How long the process waits for the others, in seconds; some of ours is kept for the answer.
  const int64_t seconds =
      std::max<int64_t>(1, absl::ToInt64Seconds(deadline - Clock::Real()->Now()) - 1);
  LS_RETURN_IF_ERROR(connection.Write(absl::StrCat("TIMEOUT ", seconds, "\n")));
  LS_ASSIGN_OR_RETURN(const std::string answer, connection.Read(false));
  if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(answer), "OK")) {
    return connection.Failed(absl::StrCat("it says ", absl::StripAsciiWhitespace(answer)));
  }
  LS_RETURN_IF_ERROR(connection.Write("STATUS\n"));
  return connection.Read(true);
}

std::string RasAddress() {
  const char* given = std::getenv("NCCL_RAS_ADDR");
  return given == nullptr || *given == '\0' ? kDefaultAddress : given;
}

std::string RasDigest(const std::string& report, int lines) {
  std::vector<std::string> bad, all;
  for (const absl::string_view line : absl::StrSplit(report, '\n')) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty()) continue;
    all.emplace_back(text);
    const std::string lower = absl::AsciiStrToLower(text);
    for (const char* word : {"error", "mismatch", "missing", "incomplete", "dead", "unresponsive",
                             "lost", "abort", "lag", "warning", "not respond"}) {
      if (!absl::StrContains(lower, word)) continue;
      bad.emplace_back(text);
      break;
    }
  }
  std::vector<std::string>& shown = bad.empty() ? all : bad;
  if (shown.size() > static_cast<size_t>(lines)) shown.resize(static_cast<size_t>(lines));
  return absl::StrJoin(shown, "; ");
}

}  // namespace lockstep
