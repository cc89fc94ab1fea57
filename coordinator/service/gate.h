// SPDX-License-Identifier: Apache-2.0
// The one place where a call is let in or not: who calls (the kernel's word, a token), and whether
// their role may make this call (core/access.h). Whose a job is the core asks.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_GATE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_GATE_H_

#include <grpcpp/server_context.h>

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/door.h"
#include "coordinator/service/hub.h"

namespace lockstep::coordinator {

class Gate {
 public:
  // `by_socket`: whom the kernel says all callers are who show no token (a Unix socket); else what
  // those are told. The others outlive the gate. Calls that a role does not allow go into the
  // audit.
  Gate(Hub* hub, Door* door, Audit* audit, absl::StatusOr<Requester> by_socket)
      : hub_(hub), door_(door), audit_(audit), by_socket_(std::move(by_socket)) {}

  // Who makes `call` ("Coordinator/SubmitJob"), if they may. Errors: Unauthenticated: a token is
  // shown that is taken no more, or never was; PermissionDenied; those of `by_socket`; Unavailable
  // when another coordinator leads by now.
  absl::StatusOr<Requester> Admit(absl::string_view call,
                                  const grpc::ServerContextBase& context) const;

 private:
  absl::StatusOr<Requester> WhoCalls(absl::string_view token) const;

  Hub* const hub_;
  Door* const door_;
  Audit* const audit_;
  const absl::StatusOr<Requester> by_socket_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_GATE_H_
