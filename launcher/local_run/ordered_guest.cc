// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/ordered_guest.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"
#include "common/thread.h"
#include "google/protobuf/util/time_util.h"
#include "launcher/agent/host.h"
#include "launcher/cli/version.h"
#include "launcher/local_run/guest.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/verbs/connect.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostDigits = 7;
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr absl::Duration kOrderWithin = absl::Seconds(30);

// Appends what `fd` has next to `text`, `bytes` at most.
absl::Status ReadSome(int fd, size_t bytes, absl::Time deadline, std::string* text) {
  char buffer[4096];
  while (true) {
    pollfd ready = {fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - Clock::Real()->Now());
    if (left <= 0) return absl::DeadlineExceededError("no order came");
    if (::poll(&ready, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t n = ::read(fd, buffer, std::min(bytes, sizeof(buffer)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading the order");
    if (n == 0) return absl::UnavailableError("the order broke off");
    text->append(buffer, static_cast<size_t>(n));
    return absl::OkStatus();
  }
}

// Where the user's shell says that the connection of ssh comes from: an address of the host that
// orders, as this one sees it.
std::string SshClient() {
  const char* const value = ::getenv("SSH_CONNECTION");
  if (value == nullptr) return "";
  const std::vector<std::string> words = absl::StrSplit(value, ' ');
  return words[0];
}

absl::StatusOr<GuestPlan> PlanOf(const GuestOrder& order) {
  GuestPlan plan;
  RunTokens tokens;
  {
    CoordinatorArgs shared;
    shared.token = order.token();
    LS_ASSIGN_OR_RETURN(tokens, TokensOfRun(shared, order.plaintext()));
  }
  plan.token = tokens.shown;
  plan.endpoints.assign(order.endpoints().begin(), order.endpoints().end());
  // The way that ssh came goes first.
  const std::string client = SshClient();
  const auto known =
      std::find_if(plan.endpoints.begin(), plan.endpoints.end(), [&](const std::string& endpoint) {
        return !client.empty() && (absl::StartsWith(endpoint, absl::StrCat(client, ":")) ||
                                   absl::StartsWith(endpoint, absl::StrCat("[", client, "]:")));
      });
  if (known != plan.endpoints.end()) std::rotate(plan.endpoints.begin(), known, known + 1);
  plan.slots = order.slots();
  plan.patience =
      absl::Nanoseconds(google::protobuf::util::TimeUtil::DurationToNanoseconds(order.patience()));
  plan.run_dir = order.run_dir();
  plan.runs_dir = order.runs_dir();
  plan.interfaces = order.interfaces();
  plan.checkpoint_dir = order.checkpoint_dir();
  plan.awaited = "the run's coordinator";
  plan.advice =
      "let this host reach the one that began the run there, or name its address and a port that "
      "is open with --rdzv-endpoint=HOST:PORT";
  plan.on_ready = [] { std::cout << kGuestReady << std::endl; };
  plan.stays = true;
  return plan;
}

absl::StatusOr<GuestOrder> TakeOrder() {
  LS_ASSIGN_OR_RETURN(GuestOrder order, ReadOrder(STDIN_FILENO, kOrderWithin));
  if (order.version() != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the launcher on host ", HostName(), " is of version ", kVersion,
                     ", and the one that began the run of ", order.version(),
                     ": install the same one there, or name its place with --launcher"));
  }
  if (::chdir(order.folder().c_str()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("host ", HostName(), " does not have the folder ", order.folder(), " (",
                     std::string(ErrnoStatus(errno, "chdir").message()),
                     "): a job's paths are the same on every host"));
  }
  return order;
}

// Calls `at_end` when the standard input ends.
class InputWatch {
 public:
  explicit InputWatch(std::function<void()> at_end)
      : stop_(::eventfd(0, EFD_CLOEXEC)),
        thread_("input", [this, at_end = std::move(at_end)] { Run(at_end); }) {}
  ~InputWatch() {
    const uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof(one));
    thread_.Join();
  }

 private:
  void Run(const std::function<void()>& at_end) {
    while (true) {
      pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      char byte;
      if (::read(STDIN_FILENO, &byte, 1) <= 0) break;
    }
    at_end();
  }

  const UniqueFd stop_;
  Thread thread_;
};

}  // namespace

std::string EncodeOrder(const GuestOrder& order) {
  const std::string bytes = order.SerializeAsString();
  return absl::StrCat(bytes.size(), "\n", bytes);
}

absl::StatusOr<GuestOrder> ReadOrder(int fd, absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::string digits;
  while (!absl::EndsWith(digits, "\n")) {
    if (digits.size() > kMostDigits) return absl::InvalidArgumentError("this is no order");
    LS_RETURN_IF_ERROR(ReadSome(fd, 1, deadline, &digits));
  }
  digits.pop_back();
  size_t size = 0;
  if (!absl::SimpleAtoi(digits, &size) || size > kMostBytes) {
    return absl::InvalidArgumentError("this is no order: 'launcher --hosts' makes one");
  }
  std::string bytes;
  while (bytes.size() < size) {
    LS_RETURN_IF_ERROR(ReadSome(fd, size - bytes.size(), deadline, &bytes));
  }
  GuestOrder order;
  if (!order.ParseFromString(bytes)) return absl::InvalidArgumentError("this is no order");
  return order;
}

int RunOrderedGuest(const GuestArgs&, Spawner* spawner) {
  const absl::StatusOr<GuestOrder> order = TakeOrder();
  if (!order.ok()) return Complain(order.status());
  Guest guest([&] { return PlanOf(*order); }, spawner);
  const InputWatch watch([&guest] { guest.Release(); });
  return guest.Run();
}

}  // namespace lockstep::launcher
