// SPDX-License-Identifier: Apache-2.0
// One call between hosts, as a rank makes it: every rank tells its call to some ranks of each other
// host and hears one rank of each; when all are the same, data moves. Ranks of one host have
// compared their calls before, in shared memory, so one voice speaks for all of them. What one call
// begins another may end (EndsWith): then that one is told and heard in the same way, while data of
// the first still moves, and both are done together.
// Thread-safety: confined to the thread that drives the mesh.
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
  // Tells that the ranks of this host make the different calls `of_ranks`, by index; of two calls
  // the second.
  void TellDifferent(const std::vector<Operation>& of_ranks);
  // The calls were compared before: only data moves.
  void SkipCalls();
  // A second call, not known yet, ends what this one begins: it is not done before. Before the
  // first frame.
  void AwaitEnd();
  // This is the second call; the record that is open is its own. Errors: FailedPrecondition when
  // those that came already differ. REQUIRES: AwaitEnd was called.
  absl::Status EndsWith(const Operation& operation);

  // Returns what came with the call of host `h`.
  const std::vector<char>& heard(int h) const { return context_->heard[static_cast<size_t>(h)]; }

  bool Next(int rank, OutgoingFrame* frame) final;
  absl::StatusOr<char*> Place(int rank, const FrameHeader& header) final;
  absl::Status Arrived(int rank, const FrameHeader& header) final;
  bool Done() const final { return AllAgreed() && !Sending() && DataDone(); }
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
  // The first call; data is sent in its name.
  const Operation& operation() const { return rounds_.front().operation; }
  // Internal: rank `rank` does not send what this call moves.
  absl::Status Unexpected(int rank, const FrameHeader& header) const;

 private:
  // How far one call is told and heard.
  struct Round {
    Operation operation;
    bool known = false;  // this rank makes it
    FrameKind kind = FrameKind::kCall;
    const void* payload = nullptr;
    size_t bytes = 0;
    std::vector<bool> done_telling;   // by rank
    std::vector<FrameKind> heard_as;  // by host; kData: not yet
    std::vector<Operation> heard;     // by host
    int told = 0;
    int hosts_heard = 0;
    bool agreed = false;
  };

  bool Tells(int rank) const;
  bool Sending() const;
  bool AllAgreed() const;
  // The call that host `h` makes next; null: none that belongs to this.
  Round* NextOf(size_t host);
  // Compares a round that is known and heard of all; else OK.
  absl::Status Compare(Round* round);
  // Returns what the ranks call, as far as it is known.
  absl::StatusOr<std::vector<Operation>> CallsOf(const Round& round) const;

  HostsContext* const context_;
  std::vector<Operation> own_calls_;  // of the ranks of this host, when they differ
  int tellings_ = 0;
  std::vector<Round> rounds_;  // one, or two
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_CALL_H_
