// SPDX-License-Identifier: Apache-2.0
// One call between hosts, as a rank makes it: every rank tells its call to some ranks of each other
// host and hears one rank of each; when all are the same, data moves. Ranks of one host have
// compared their calls before, in shared memory, so one voice speaks for all of them.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_CALL_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_CALL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/hosts/host_groups.h"
#include "collectives/operation.h"
#include "collectives/tcp/mesh.h"

namespace lockstep {

// What a rank keeps from call to call.
struct HostsContext {
  HostGroups hosts;
  int rank = 0;
  Mesh* mesh = nullptr;
  FlightRecorder* recorder = nullptr;
  std::vector<std::vector<char>> heard;  // by host: the payload of its call

  int my_host() const { return hosts.host_of(rank); }
  int my_index() const { return hosts.index_of(rank); }
};

class HostsCall : public MeshUser {
 public:
  // Tells `operation` with `bytes` at `payload`, which stay as they are.
  HostsCall(HostsContext* context, const Operation& operation, const void* payload = nullptr,
            size_t bytes = 0);
  // Tells that the ranks of this host make the different calls `of_ranks`, by index.
  void TellDifferent(const std::vector<Operation>& of_ranks);
  // The calls were compared before: only data moves.
  void SkipCalls();

  // What came with the call of host `h`.
  const std::vector<char>& heard(int h) const { return context_->heard[static_cast<size_t>(h)]; }

  bool Next(int rank, OutgoingFrame* frame) final;
  absl::StatusOr<char*> Place(int rank, const FrameHeader& header) final;
  absl::Status Arrived(int rank, const FrameHeader& header) final;
  bool Done() const final { return agreed_ && told_ == tellings_ && !Sending() && DataDone(); }
  bool WaitsFor(int rank) const final;

 protected:
  // The same for what the call moves. Frames come only after all agree.
  virtual bool NextData(int /*rank*/, OutgoingFrame* /*frame*/) { return false; }
  // Null: it is for what follows in the same call.
  virtual absl::StatusOr<char*> PlaceData(int /*rank*/, const FrameHeader& /*header*/) {
    return nullptr;
  }
  virtual absl::Status ArrivedData(int /*rank*/, const FrameHeader& /*header*/) {
    return absl::OkStatus();
  }
  virtual bool DataDone() const { return true; }
  virtual bool WaitsForData(int /*rank*/) const { return false; }

  const HostsContext& context() const { return *context_; }
  const HostGroups& hosts() const { return context_->hosts; }
  int self() const { return context_->rank; }
  const Operation& operation() const { return operation_; }
  // Internal: rank `rank` does not send what this call moves.
  absl::Status Unexpected(int rank, const FrameHeader& header) const;

 private:
  bool Tells(int rank) const;
  bool Sending() const;
  absl::Status Compare();

  HostsContext* const context_;
  const Operation operation_;
  const void* payload_;
  size_t bytes_;
  FrameKind kind_ = FrameKind::kCall;
  std::vector<Operation> own_calls_;   // of the ranks of this host, when they differ
  std::vector<bool> done_telling_;     // by rank
  std::vector<FrameKind> heard_kind_;  // by host
  std::vector<bool> heard_host_;
  std::vector<Operation> heard_call_;
  int told_ = 0, tellings_ = 0;
  int heard_ = 0;
  bool agreed_ = false;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_CALL_H_
