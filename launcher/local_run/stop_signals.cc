// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "common/check.h"
#include "common/clock.h"
#include "launcher/local_run/stop_wishes.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLookAgain = absl::Minutes(1);

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // One that was ignored from the start (nohup) stays ignored.
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

void StopSignals::Block() {
  const sigset_t set = StopSet();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error that names the file
}

StopSignals::StopSignals(std::function<void(int count)> on_signal)
    : StopSignals([on_signal = std::move(on_signal)](int count, int) { on_signal(count); }) {}

StopSignals::StopSignals(std::function<void(int count, int signal)> on_signal,
                         std::function<void()> on_again) {
  const sigset_t set = StopSet();
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  LS_CHECK(signals_.valid() && stop_.valid()) << "signalfd or eventfd failed";
  reader_ = Thread("signals", [this, on_again = std::move(on_again)] { Read(on_again); });
  caller_ = Thread("stops", [this, on_signal = std::move(on_signal)] { Call(on_signal); });
}

StopSignals::~StopSignals() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }
  changed_.NotifyAll();
  reader_.Join();
  caller_.Join();
}

void StopSignals::Read(const std::function<void()>& on_again) {
  StopWishes wishes;
  while (true) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      StopSignal signal{.number = static_cast<int>(info.ssi_signo),
                        .sender = static_cast<int64_t>(info.ssi_pid),
                        .read = Clock::Real()->Now()};
      if (info.ssi_code == SI_KERNEL) signal.sender = StopSignal::kTerminal;
      if (!wishes.Take(signal)) continue;
      {
        absl::MutexLock lock(&mu_);
        wishes_.push_back({wishes.count(), signal.number});
      }
      changed_.NotifyAll();
      if (wishes.count() > 1 && on_again != nullptr) on_again();
    }
  }
}

void StopSignals::Call(const std::function<void(int, int)>& on_signal) {
  while (true) {
    Wish wish;
    {
      absl::MutexLock lock(&mu_);
      while (wishes_.empty() && !over_) changed_.WaitFor(&mu_, kLookAgain);
      if (over_) return;
      wish = wishes_.front();
      wishes_.pop_front();
    }
    on_signal(wish.count, wish.signal);
  }
}

}  // namespace lockstep::launcher
