// SPDX-License-Identifier: Apache-2.0
// Moves stretches of bytes between ranks of different hosts, each in frames from where it lies to
// where it shall lie. The call was compared before; a call may have several moves, one after
// another. Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_STRETCH_MOVE_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_STRETCH_MOVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/hosts/hosts_call.h"

namespace lockstep {

// What goes to or comes from one rank.
struct Stretch {
  int rank = -1;
  char* data = nullptr;
  size_t bytes = 0;
  size_t done = 0;
};

class StretchMove : public HostsCall {
 public:
  // Both ends count their moves alike: `number` is this one.
  StretchMove(HostsContext* context, const Operation& operation, uint64_t number,
              std::vector<Stretch> sends, std::vector<Stretch> receives);

 protected:
  bool NextData(int rank, OutgoingFrame* frame) override;
  absl::StatusOr<char*> PlaceData(int rank, const FrameHeader& header) override;
  absl::Status ArrivedData(int rank, const FrameHeader& header) override;
  bool DataDone() const override;
  bool WaitsForData(int rank) const override;

 private:
  const uint32_t number_;
  std::vector<Stretch> sends_, receives_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_STRETCH_MOVE_H_
