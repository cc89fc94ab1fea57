// SPDX-License-Identifier: Apache-2.0
// Tells the service manager that started this process (systemd) how far it is, by the protocol of
// sd_notify(3): "READY=1" when it serves, "STATUS=..." a line for people, "STOPPING=1" when it
// ends. Thread-safety: may be called from any thread; the environment must not be changed
// meanwhile.
#ifndef LOCKSTEP_COMMON_SERVICE_MANAGER_H_
#define LOCKSTEP_COMMON_SERVICE_MANAGER_H_

#include "absl/strings/string_view.h"

namespace lockstep {

// Sends `state` to the socket that $NOTIFY_SOCKET names; nothing happens without one. Does not
// block: a manager that does not listen misses it.
void TellServiceManager(absl::string_view state);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_SERVICE_MANAGER_H_
