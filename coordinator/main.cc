// SPDX-License-Identifier: Apache-2.0
// The program `coordinator`: flags and wiring.
// Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start (the address is in use or not
// allowed, the token file cannot be read, the journal is in use, damaged or cannot be written);
// 2 usage; 3 the journal has failed while it served.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "coordinator/findable.h"
#include "coordinator/flags.h"
#include "coordinator/init_verb.h"
#include "coordinator/service/server.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

void TellReady(int fd, const std::string& address) {
  const std::string line = absl::StrCat(address, "\n");
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    LS_LOG_WARNING << "nobody reads --ready-fd " << fd;
  }
  ::close(fd);
}

int Complain(const absl::Status& status) {
  std::cerr << "coordinator: " << status.message() << "\n";
  return 1;
}

// Each connection is a descriptor.
void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LS_LOG_WARNING << "the limit of open files stays low (ulimit -n)";
  }
}

// Says once a day what is to be known of the certificate.
int AwaitSignal(const sigset_t& signals, const Findable& findable) {
  constexpr timespec kDay = {24 * 60 * 60, 0};
  for (;;) {
    if (const std::string warning = findable.Warning(); !warning.empty()) {
      LS_LOG_WARNING << warning;
    }
    int signal;
    do signal = sigtimedwait(&signals, nullptr, &kDay);
    while (signal < 0 && errno == EINTR);
    if (signal > 0) return signal;
  }
}

int Serve(Flags& flags, const sigset_t& signals) {
  RaiseFileLimit();
  const absl::StatusOr<std::unique_ptr<Store>> store =
      flags.state.folder.empty() ? MakeMemoryStore() : OpenSqliteStore(flags.state);
  if (!store.ok()) return Complain(store.status());
  Findable findable;
  if (absl::Status chosen = findable.Choose(flags); !chosen.ok()) return Complain(chosen);
  std::atomic<bool> broken = false;
  flags.server.on_broken = [&broken](const absl::Status&) {
    broken = true;
    ::kill(::getpid(), SIGTERM);  // which this thread waits for
  };
  if (!flags.state.folder.empty()) flags.server.packages = flags.state.folder + "/packages";
  // Of a run on one machine nobody asks.
  if (!flags.state.folder.empty() && !flags.parent_death) {
    flags.server.audit = flags.state.folder + "/audit.jsonl";
  }
  auto server = Server::Start(flags.server, Clock::Real(), store->get());
  if (!server.ok()) return Complain(server.status());
  findable.Announce((*server)->address());
  if (flags.ready_fd >= 0) TellReady(flags.ready_fd, (*server)->address());
  LS_LOG_INFO << "coordinator " LOCKSTEP_VERSION " listens on " << (*server)->address()
              << (flags.server.tls.has_value() ? " with TLS" : "");
  TellServiceManager(absl::StrCat("READY=1\nSTATUS=listens on ", (*server)->address()));
  const int signal = AwaitSignal(signals, findable);
  if (broken) return 3;  // the hub has said why
  TellServiceManager("STOPPING=1");
  LS_LOG_INFO << "stopping: " << (signal == SIGINT ? "SIGINT" : "SIGTERM");
  return 0;
}

int Main(int argc, char** argv) {
  if (argc > 1 && absl::string_view(argv[1]) == "init") return RunInit({argv + 2, argv + argc});
  absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "coordinator: " << flags.status().message() << "\n\n" << kUsage;
    return 2;
  }
  if (flags->done) return 0;
  if (flags->parent_death) {
    // The parent may have ended before the request was made, so it is looked at again after it.
    const int before = flags->parent != 0 ? flags->parent : getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != before) return 1;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Before any thread starts, so that all of them inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit (ulimit -f) is a full disk
  return Serve(*flags, signals);
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
