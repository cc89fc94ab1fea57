// SPDX-License-Identifier: Apache-2.0
#include "common/thread.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace lockstep {

Thread::Thread(const std::string& name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  // What an access of the thread itself raises ends the process where it is blocked, whatever
  // handles it elsewhere (common/bus_guard.h).
  for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([name = name.substr(0, 15), body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace lockstep
