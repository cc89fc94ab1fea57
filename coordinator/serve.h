// SPDX-License-Identifier: Apache-2.0
// The life of the daemon, alone or as one of several (candidate.h).
// Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_SERVE_H_
#define LOCKSTEP_COORDINATOR_SERVE_H_

#include <signal.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/findable.h"
#include "coordinator/flags.h"

namespace lockstep::coordinator {

// Why the main thread is woken: what other threads have to tell it. They wake it by SIGUSR1, for
// which it waits together with the signals that end the process.
class News {
 public:
  void Broken(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);  // the journal has failed
  void Later(int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);             // somebody obeyed this one
  void Won() ABSL_LOCKS_EXCLUDED(mu_);                            // it leads
  void Lost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);    // it leads no more

  // The journal's failure or the loss of the lead, whichever came first; OK: neither.
  absl::Status over() const ABSL_LOCKS_EXCLUDED(mu_);
  bool won() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t later() const ABSL_LOCKS_EXCLUDED(mu_);  // 0: nobody

 private:
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  absl::Status over_ ABSL_GUARDED_BY(mu_);
  bool won_ ABSL_GUARDED_BY(mu_) = false;
  int64_t later_ ABSL_GUARDED_BY(mu_) = 0;
};

// Waits for one of `signals`, SIGUSR1 among them. Says once a day what is to be known of the
// certificate.
int AwaitSignal(const sigset_t& signals, const Findable& findable);

// Says on --ready-fd, to the service manager and in the log that callers are answered at `address`.
void TellServing(Flags& flags, const std::string& address);

// Tells what SIGTERM or SIGINT (`signal`) leads to, in words.
void TellStopping(int signal);

// Has what a coordinator keeps beside its journal lie in `folder`; empty: it is not kept.
void KeepIn(const std::string& folder, Flags& flags);

// Prints what hinders the start; the exit code.
int Complain(const absl::Status& status);

// Serves with the journal in --state-dir, or without one, until a signal comes. The exit code.
int ServeAlone(Flags& flags, const sigset_t& signals);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVE_H_
