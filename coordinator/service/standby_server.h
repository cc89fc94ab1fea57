// SPDX-License-Identifier: Apache-2.0
// What a coordinator answers while another one leads: UNAVAILABLE to every call, with the leader's
// address in the trailing metadata (client/trailing_keys.h) and in words. It asks for no token,
// since it says nothing that the leader would not ask one for.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_STANDBY_SERVER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_STANDBY_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/server.h"

namespace lockstep::coordinator {

class StandbyServer {
 public:
  // Answers on `listener`, which it leaves listening at its end. `listener` and `clock` outlive it.
  // Errors: Internal (gRPC does not start).
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(const ServerOptions& options,
                                                              Listener* listener, Clock* clock);
  virtual ~StandbyServer() = default;  // cuts the connections, whose peers come again
  // Who leads from now on; empty: nobody, or it is not known.
  virtual void SetLeader(const std::string& address) = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_STANDBY_SERVER_H_
