// SPDX-License-Identifier: Apache-2.0
// A listening coordinator.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/state.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

struct ServerOptions {
  // "unix:/path", "unix-abstract:name" or "host:port" (port 0: any free one).
  std::string listen = "127.0.0.1:7070";
  // Shown by every caller; empty: none is asked for.
  std::string token;
  Options limits;
};

class Server {
 public:
  // Listens and serves. `clock` and `store` outlive the server.
  // Errors: InvalidArgument (a bad address), FailedPrecondition (an address that other machines
  // reach, which needs TLS and a token; the address is in use), DataLoss and others when the
  // journal cannot be read.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Clock* clock,
                                                       Store* store);
  virtual ~Server() = default;  // stops
  // The address that clients use, with the port that was bound.
  virtual const std::string& address() const = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_
