// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/late_answers.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"

namespace lockstep {
namespace {

constexpr int kLookMillis = 5;

sockaddr_in Loopback(int port) {
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<uint16_t>(port));
  return name;
}

// Returns what can be read now; empty: the other end is gone.
std::string Take(const UniqueFd& fd) {
  char bytes[16384];
  const ssize_t n = ::read(fd.get(), bytes, sizeof(bytes));
  return n > 0 ? std::string(bytes, static_cast<size_t>(n)) : "";
}

bool Pass(const UniqueFd& fd, const std::string& bytes) {
  return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

LateAnswers::LateAnswers(int port, absl::Duration late)
    : port_(port),
      late_nanos_(absl::ToInt64Nanoseconds(late)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in name = Loopback(0);
  socklen_t size = sizeof(name);
  auto* const plain = reinterpret_cast<sockaddr*>(&name);
  LS_CHECK(::bind(listener_.get(), plain, size) == 0 && ::listen(listener_.get(), 8) == 0 &&
           ::getsockname(listener_.get(), plain, &size) == 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  thread_ = Thread("late-answers", [this] { Run(); });
}

LateAnswers::~LateAnswers() {
  const uint64_t one = 1;
  LS_CHECK_EQ(::write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.Join();
}

void LateAnswers::Accept() {
  Connection connection;
  connection.client.reset(::accept(listener_.get(), nullptr, nullptr));
  connection.server.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in name = Loopback(port_);
  connection.over = ::connect(connection.server.get(), reinterpret_cast<const sockaddr*>(&name),
                              sizeof(name)) != 0;
  connections_.push_back(std::move(connection));
}

void LateAnswers::Serve(Connection& connection, short client, short server) {
  if (client != 0) {
    const std::string said = Take(connection.client);
    connection.over |= said.empty();
    if (!connection.swallowed) connection.over |= !Pass(connection.server, said);
  }
  if (server != 0) {
    std::string answer = Take(connection.server);
    connection.over |= answer.empty();
    if (connection.swallowed) return;
    connection.answers.emplace_back(Clock::Real()->Now() + absl::Nanoseconds(late_nanos_.load()),
                                    std::move(answer));
  }
}

void LateAnswers::Deliver(Connection& connection) {
  while (!connection.answers.empty() && connection.answers.front().first <= Clock::Real()->Now()) {
    connection.over |= !Pass(connection.client, connection.answers.front().second);
    connection.answers.pop_front();
  }
}

void LateAnswers::Run() {
  for (;;) {
    std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      fds.push_back({connection.client.get(), POLLIN, 0});
      fds.push_back({connection.server.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), kLookMillis);
    if (fds[0].revents != 0) return;
    if (swallow_.exchange(false)) {
      for (Connection& connection : connections_) {
        connection.swallowed = true;
        connection.answers.clear();
      }
    }
    size_t place = 2;
    for (Connection& connection : connections_) {
      Serve(connection, fds[place].revents, fds[place + 1].revents);
      Deliver(connection);
      place += 2;
    }
    if (fds[1].revents != 0) Accept();
    connections_.remove_if([](const Connection& connection) { return connection.over; });
  }
}

}  // namespace lockstep
