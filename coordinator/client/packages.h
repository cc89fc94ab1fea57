// SPDX-License-Identifier: Apache-2.0
// How packages come to a coordinator and from it (proto/package.proto). No gRPC type is visible
// here. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_PACKAGES_H_
#define LOCKSTEP_COORDINATOR_CLIENT_PACKAGES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"

namespace lockstep::coordinator {

class PackagesClient {
 public:
  // Does not block. Never null.
  static std::unique_ptr<PackagesClient> Create(const ClientOptions& options);
  virtual ~PackagesClient() = default;

  // Hands it in, unless the coordinator has it; returns whether it was sent. Blocks for as long as
  // bytes move. Errors: Unavailable (nobody was reached for `silence`), DeadlineExceeded (then none
  // moved for so long), Unimplemented (an older coordinator), ResourceExhausted.
  virtual absl::StatusOr<bool> Put(const std::string& id, const std::string& bytes,
                                   absl::Duration silence) = 0;
  // Blocks as Put does. Errors: its first two, NotFound, ResourceExhausted (try again),
  // DataLoss (the bytes are not those of the name).
  virtual absl::StatusOr<std::string> Get(const std::string& id, absl::Duration silence) = 0;
  // Ends what runs on other threads, and what is asked for later, with Cancelled.
  virtual void Stop() = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_PACKAGES_H_
