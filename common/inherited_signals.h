// SPDX-License-Identifier: Apache-2.0
// A program may be started with signals ignored or blocked (trap '' CHLD).
// Thread-safety: for the beginning of main, before there are threads.
#ifndef LOCKSTEP_COMMON_INHERITED_SIGNALS_H_
#define LOCKSTEP_COMMON_INHERITED_SIGNALS_H_

#include <signal.h>

namespace lockstep {

// Ends of child processes are told to who waits for them, as waitpid(2) does not where SIGCHLD is
// ignored; and no signal is blocked that should end this process, or those that it starts. What is
// ignored else stays so (nohup).
inline void ResetInheritedSignals() {
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_INHERITED_SIGNALS_H_
