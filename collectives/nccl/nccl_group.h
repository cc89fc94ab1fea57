// SPDX-License-Identifier: Apache-2.0
// One NCCL communicator and how one waits for it: it never blocks, every wait has a deadline and
// ends when the generation does. Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/nccl/gpu_queue.h"
#include "collectives/nccl/nccl_library.h"

namespace lockstep {

// How long and for whom a wait goes on.
struct NcclWait {
  absl::Time deadline = absl::InfiniteFuture();
  // An error ends the wait with it. May be empty.
  std::function<absl::Status()> alive;
  // Called once when the wait has lasted `stall_after`. May be empty.
  std::function<void()> on_stall;
  absl::Duration stall_after = absl::InfiniteDuration();
  // What ending the communicator that is made may take, each time: more means that the GPU hangs.
  absl::Duration end_within = absl::Seconds(10);
};

class NcclGroup {
 public:
  // Makes the communicator of all that come with `id`. Blocks. `library` and `queue` outlive it.
  // Errors: those of `wait`, DeadlineExceeded, and of NcclStatus.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(const NcclLibrary* library,
                                                           GpuQueue* queue, int world, int rank,
                                                           const NcclUniqueId& id,
                                                           NcclConfig config, const NcclWait& wait);
  // One for those of `old` that are not `excluded` (all of them call it), as rank `rank` of
  // `world`. Errors: as Create.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Shrink(NcclGroup* old,
                                                           const std::vector<int>& excluded,
                                                           int world, int rank, NcclConfig config,
                                                           const NcclWait& wait);
  // One for those of `old`, which joiners do not have (null), and joiners. `id` is of the first
  // rank's GrowId. Errors: as Create.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Grow(const NcclLibrary* library,
                                                         GpuQueue* queue, NcclGroup* old, int world,
                                                         int rank, const NcclUniqueId& id,
                                                         NcclConfig config, const NcclWait& wait);
  // Aborts what runs and frees all. Blocks until the GPU has left it; abandons the queue when it
  // does not within NcclWait::end_within.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int world() const { return world_; }
  int rank() const { return rank_; }
  // Returns whether nothing has failed: Revoke was never called.
  bool whole() const { return !revoked_; }
  // Returns whether NCCL may still be at a call of this communicator that was given up: until it is
  // aborted it can do nothing else.
  bool busy() const { return !unfilled_.empty(); }
  const NcclApi& api() const { return library_->api; }
  NcclComm comm() const { return comm_; }

  // For Grow. Blocks. Errors: as Create.
  absl::StatusOr<NcclUniqueId> GrowId(const NcclWait& wait);

  // Queues NCCL's calls that `calls` makes, as one group. It returns the first error of them.
  // Blocks until they are queued. Errors: as Create.
  absl::Status Group(const std::function<NcclResult()>& calls, const std::string& what,
                     const NcclWait& wait);
  // Waits until all that was queued is done. Errors: as Create.
  absl::Status Finish(const std::string& what, const NcclWait& wait);

  // Makes `memory` symmetric; all ranks call it alike. Errors: as Create.
  absl::Status Register(void* memory, size_t bytes, const NcclWait& wait);

  // Ends what is queued, after an error. False: it cannot be used for Shrink, and is to be
  // destroyed. Blocks for NcclWait::end_within twice at most.
  bool Revoke();

 private:
  NcclGroup(const NcclLibrary* library, GpuQueue* queue, int world, int rank,
            absl::Duration end_within)
      : library_(library), queue_(queue), world_(world), rank_(rank), end_within_(end_within) {}
  // Until `made` can be used. `filler`: the communicator whose thread fills in its handle; null:
  // the handle is there.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Await(NcclGroup* filler,
                                                          std::unique_ptr<NcclGroup> made,
                                                          NcclResult started,
                                                          const std::string& what,
                                                          const NcclWait& wait);
  // Until the communicator has done what it was told last.
  absl::Status Settle(NcclResult started, const std::string& what, const NcclWait& wait);
  // What NCCL puts where it is told to, by a call that may not be done when it returns. Errors: as
  // Settle.
  template <typename T>
  absl::StatusOr<T> Fetch(const std::function<NcclResult(T*)>& call, const std::string& what,
                          const NcclWait& wait);
  absl::Status WaitUntil(const std::function<absl::StatusOr<bool>()>& done, const std::string& what,
                         const NcclWait& wait);
  absl::Status AsyncError(const std::string& what, bool* busy) const;

  const NcclLibrary* const library_;
  GpuQueue* const queue_;
  const int world_;
  const int rank_;
  const absl::Duration end_within_;
  NcclComm comm_ = nullptr;
  bool revoked_ = false;
  std::vector<NcclWindow> windows_;
  // Where NCCL's thread still writes, of calls that were given up: a communicator made of this one
  // (which it then fills in, for better or worse), or what Fetch asks for. They go when this one
  // has been aborted, which ends that thread.
  std::vector<std::shared_ptr<void>> unfilled_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_
