// SPDX-License-Identifier: Apache-2.0
#include "worker/control/farewell_watch.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "common/check.h"
#include "common/farewell.h"

namespace lockstep::worker {
namespace {

sigset_t FarewellSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kFarewellSignal);
  return set;
}

}  // namespace

void FarewellWatch::Block() {
  const sigset_t set = FarewellSet();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

FarewellWatch::FarewellWatch(std::function<void()> on_farewell) {
  const sigset_t set = FarewellSet();
  signal_.reset(::signalfd(-1, &set, SFD_CLOEXEC));
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  LS_CHECK(signal_.valid() && stop_.valid()) << "signalfd or eventfd failed";
  thread_ = Thread("farewell", [this, on_farewell = std::move(on_farewell)] { Run(on_farewell); });
}

FarewellWatch::~FarewellWatch() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.Join();
}

void FarewellWatch::Run(const std::function<void()>& on_farewell) {
  while (true) {
    pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {signal_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents != 0) return;
    signalfd_siginfo info;
    if (fds[1].revents != 0 && ::read(signal_.get(), &info, sizeof(info)) > 0) break;
  }
  on_farewell();
}

}  // namespace lockstep::worker
