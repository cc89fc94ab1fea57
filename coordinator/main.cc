// SPDX-License-Identifier: Apache-2.0
// The program `coordinator`: flags and wiring.
// Exit codes: 0 stopped by SIGTERM, SIGINT or SIGHUP; 1 could not start (the address is in use or
// not allowed, the token file cannot be read, the journal is in use, damaged or cannot be written);
// 2 usage; 3 the journal has failed while it served. With --store the loss of the lead, or of etcd,
// is no end: the coordinator stands by again.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/log_dates.h"
#include "common/log_environment.h"
#include "common/mutex_checks.h"
#include "common/openssl_at_exit.h"
#include "common/standard_descriptors.h"
#include "coordinator/backup_verb.h"
#include "coordinator/candidate.h"
#include "coordinator/flags.h"
#include "coordinator/init_verb.h"
#include "coordinator/serve.h"

namespace lockstep::coordinator {
namespace {

// Each connection is a descriptor.
void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LS_LOG_WARNING << "the limit of open files stays low (ulimit -n)";
  }
}

bool IsIgnored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// `code`, or 1 where what was asked for could not be written.
int Written(int code) {
  if (code != 0 || std::cout.flush()) return code;
  std::cerr << "coordinator: cannot write to the standard output: the answer is not complete\n";
  return 1;
}

int Main(int argc, char** argv) {
  const absl::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "init") return Written(RunInit({argv + 2, argv + argc}));
  if (verb == "backup") return RunBackup({argv + 2, argv + argc});
  if (verb == "restore") return RunRestore({argv + 2, argv + argc});
  absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "coordinator: " << flags.status().message()
              << "; `coordinator --help` shows all flags\n";
    return 2;
  }
  if (flags->done) return Written(0);
  if (!flags->parent_death) LogDates();  // else it is part of a run, whose output is short
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
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);  // else it is started by nohup(1)
  sigaddset(&signals, SIGUSR1);                         // from other threads (serve.h)
  // Before any thread starts, so that all of them inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit (ulimit -f) is a full disk
  RaiseFileLimit();
  if (absl::Status enough = CheckProgramLimits(ProgramLimits()); !enough.ok()) {
    std::cerr << "coordinator: " << enough.message() << "\n";
    return 1;
  }
  return flags->store.address.empty() ? ServeAlone(*flags, signals)
                                      : ServeAsCandidate(*flags, signals);
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  lockstep::TakeStandardDescriptors();
  lockstep::SkipMutexChecksInRelease();
  lockstep::KeepOpenSslUntilTheEnd();
  lockstep::CheckLogEnvironment();
  return lockstep::coordinator::Main(argc, argv);
}
