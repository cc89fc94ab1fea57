// SPDX-License-Identifier: Apache-2.0
// The data plane between workers that each have a GPU: vectors lie in the GPU's memory and are
// reduced by NCCL; all else is that of another transport below, which also carries what NCCL needs
// to begin. At a new generation survivors shrink or grow the communicator that they hold, where
// the library can, else a new one is made. Thread-safety: as Transport.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/nccl/gpu_queue.h"
#include "collectives/nccl/nccl_group.h"
#include "collectives/nccl/nccl_join.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_memory.h"
#include "collectives/nccl/stall_report.h"

namespace lockstep {

class NcclTransport : public Transport {
 public:
  struct Options {
    // Null: this worker can only be alone in its generations. Outlives the transport.
    const NcclLibrary* library = nullptr;
    std::unique_ptr<GpuQueue> queue;
    // Reaches every rank. Its arena holds what Allocate gives.
    std::unique_ptr<Transport> control;
    // Limits of NCCL's, where they are set.
    NcclConfig config;
    // config.net_name's text.
    std::string net_name;
    // TreeReduce adds as NCCL likes: other bits with other numbers of ranks.
    bool fastest = false;
    // Several ranks on one GPU are NCCL's to deal with (2.30 and newer, experimental).
    bool may_share_gpu = false;
    // Vectors are registered as symmetric windows, where the library has them.
    bool windows = true;
    // Floats of one slice that are exchanged at a time; a multiple of 16.
    int64_t piece = kNcclPiece;
    // Floats that reductions are to come to ask NcclMemory::Staging for.
    int64_t staging = 0;
    // What a step of shrinking or growing may take before a new communicator is made instead.
    absl::Duration try_held_for = absl::Seconds(30);
    // When data has moved for so long, NCCL's own watch is asked why and the answer logged.
    absl::Duration stall_after = absl::Seconds(10);
    // As NcclWait has it.
    absl::Duration end_within = absl::Seconds(10);
  };

  // REQUIRES: queue and control are given.
  explicit NcclTransport(Options options);
  // REQUIRES: its communicators are gone.
  ~NcclTransport() override;

  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override {
    return control_->Allocate(bytes, what);
  }
  absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what) override {
    return control_->ReservePages(bytes, what);
  }
  absl::Status CommitPages(void* data, size_t bytes, const std::string& what) override {
    return control_->CommitPages(data, bytes, what);
  }
  void ReleasePages(void* data, size_t bytes) override { control_->ReleasePages(data, bytes); }
  VectorMemory& vectors() override { return memory_; }
  // Errors, besides those of Transport: Internal of the GPU, also when it did not come back from an
  // earlier communicator.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupSpec& spec,
                                                        absl::Time deadline) override;
  void AbortConnect(int64_t generation, const std::string& reason) override;
  std::string address() const override { return control_->address(); }
  std::string key() const override { return control_->key(); }
  int tcp_port() const override { return control_->tcp_port(); }
  bool spans_hosts() const override { return control_->spans_hosts(); }
  const FlightRecorder& flight_recorder() const override { return control_->flight_recorder(); }

  // How the last communicator was come by. For messages and tests.
  NcclJoin::Way last_way() const { return last_way_; }

 private:
  // The communicator of an earlier generation that this rank still holds.
  struct Held {
    int64_t generation = -1;
    std::unique_ptr<NcclGroup> group;
  };

  NcclHello Hello(const GroupMember& me) const;
  absl::StatusOr<std::unique_ptr<NcclGroup>> Join(Communicator* control, const NcclJoin& join,
                                                  const NcclWait& wait);
  // The same for ways that use the communicator that is held.
  absl::StatusOr<std::unique_ptr<NcclGroup>> JoinByHeld(Communicator* control, const NcclJoin& join,
                                                        const NcclWait& wait);
  absl::StatusOr<NcclUniqueId> ShareId(Communicator* control,
                                       const std::function<absl::StatusOr<NcclUniqueId>()>& make,
                                       const NcclWait& wait);
  absl::Status RegisterVectors(NcclGroup* group, const NcclWait& wait) const;
  NcclConfig Config() const;
  // NCCL's communicator of the ranks that `control` reaches; `me` is this one.
  absl::StatusOr<std::unique_ptr<NcclGroup>> ConnectNccl(Communicator* control,
                                                         const GroupMember& me,
                                                         absl::Time deadline);

  const NcclLibrary* const library_;
  const std::unique_ptr<GpuQueue> queue_;
  const std::unique_ptr<Transport> control_;
  const NcclConfig config_;
  const std::string net_name_;
  const bool fastest_;
  const bool may_share_gpu_;
  const bool windows_;
  const int64_t piece_;
  const absl::Duration try_held_for_;
  const absl::Duration stall_after_;
  const absl::Duration end_within_;
  NcclMemory memory_;
  StallReport stall_report_;
  Held held_;
  NcclJoin::Way last_way_ = NcclJoin::Way::kNew;

  absl::Mutex mu_;
  // Where an abort of a generation that is being connected goes to.
  Communicator* connecting_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t aborted_generation_ ABSL_GUARDED_BY(mu_) = -1;
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_TRANSPORT_H_
