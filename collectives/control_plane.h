// SPDX-License-Identifier: Apache-2.0
// What a communicator that moves data by other means (NCCL) needs of one that reaches every rank:
// its calls are numbered, announced, compared and recorded as if they were the other's own. A call
// is BeginCall, Announce, whatever moves the data, EndCall.
// Thread-safety: as Communicator.
#ifndef LOCKSTEP_COLLECTIVES_CONTROL_PLANE_H_
#define LOCKSTEP_COLLECTIVES_CONTROL_PLANE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/flight_recorder.h"
#include "collectives/operation.h"

namespace lockstep {

class ControlPlane {
 public:
  // The most bytes that a rank may announce with a call.
  static constexpr size_t kAnnouncedBytes = 8 << 10;

  virtual ~ControlPlane() = default;

  // The next call of this generation.
  virtual Operation NewOperation(OpKind kind, int64_t count, DType dtype) const = 0;

  // Opens the record of `operation`, which moves `bytes`. Errors: the one that finished the
  // communicator before; then there is no record to end.
  virtual absl::Status BeginCall(const Operation& operation, int64_t bytes) = 0;

  // Waits until every rank has announced its call and compares them. `all` gets the `size` bytes
  // at `mine` of each rank, by rank. Blocks. REQUIRES: size <= kAnnouncedBytes.
  // Errors: Aborted, DeadlineExceeded, FailedPrecondition, as every call of a communicator.
  virtual absl::Status Announce(const Operation& operation, const void* mine, size_t size,
                                void* all, absl::Time deadline) = 0;

  // Closes the record with `status`, which it returns; an error finishes the communicator.
  virtual absl::Status EndCall(const Operation& operation, absl::Status status) = 0;

  // Counts calls from 1 again: what came before was preparation. All ranks do so after the same
  // call.
  virtual void RestartNumbering() = 0;

  // Aborted when the generation was aborted, a peer is known to be dead, or one has left that had
  // not completed the newest call; names the peer. Does not block.
  virtual absl::Status CheckAlive() const = 0;

  // Where the calls are recorded.
  virtual FlightRecorder* recorder() const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_CONTROL_PLANE_H_
