// SPDX-License-Identifier: Apache-2.0
// Where the optimizer's moments lie for the kernels of an update. They are not among the rest of
// the state in device memory: they have a buffer of their own, which has those alone that this
// worker holds (TrainSpec::shard_moments), or they stay in the host's state region and come to the
// device chunk by chunk while they are updated (TrainSpec::offload_moments), the next chunk on its
// way while one is computed and the last one on its way back.
// Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_MOMENTS_H_
#define LOCKSTEP_ENGINE_CUDA_MOMENTS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/device.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"

namespace lockstep::engine {

class CudaMoments {
 public:
  // Elements [first, first + count) of a parameter, whose moments are held.
  struct Piece {
    size_t parameter = 0;
    int64_t first = 0;
    int64_t count = 0;
  };
  // Pieces [begin, end) are updated by one launch.
  struct Chunk {
    size_t begin = 0;
    size_t end = 0;
  };

  // `reserve` bytes are for the moments that are held, 0: for all. Nothing is held before Hold.
  // All outlive it. Errors: ResourceExhausted, Internal.
  static absl::StatusOr<std::unique_ptr<CudaMoments>> Make(const CompiledPlan* plan,
                                                           StateRegion* host, cuda::Device* device,
                                                           size_t reserve);
  // Bytes of device memory that Make takes.
  static size_t DeviceBytes(const CompiledPlan& plan, size_t reserve);
  // Bytes [begin, end) of the state region that hold moments; what lies between moments is 0.
  static StateRange RangeOf(const CompiledPlan& plan);
  // Every element of every parameter.
  static std::vector<Piece> AllOf(const CompiledPlan& plan);
  // Returns what of it lies in `held`.
  static std::vector<Piece> In(const CompiledPlan& plan, const std::vector<HeldRange>& held);

  // `pieces`, ascending and apart, are held from here on; their moments come from the state region.
  // Cuts them where chunks end: at multiples of an UpdateBlock from the parameter's first element.
  // Blocks. Errors: ResourceExhausted when they are more than were reserved, Internal.
  absl::Status Hold(const std::vector<Piece>& pieces);
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  // At most so many pieces are held, and so many UpdateBlocks make them up.
  size_t most_pieces() const { return most_pieces_; }
  size_t most_blocks() const { return most_blocks_; }
  // Where moment `moment` of piece `piece` lies while its chunk is brought.
  float* At(size_t piece, size_t moment) const;

  // The compute stream goes on when chunk `chunk` is on the device. Errors: Internal.
  absl::Status Bring(size_t chunk);
  // The compute stream is done with it; `changed` says whether it has new values. Errors: Internal.
  absl::Status Take(size_t chunk, bool changed);
  // Blocks until all that was taken is in the state region. Errors: Internal.
  absl::Status Settle() const;

  // Brings what is held to the device, on the compute stream. Errors: Internal.
  absl::Status Upload() const { return Move(true); }
  // The same back to the state region.
  absl::Status Publish() const { return Move(false); }

 private:
  // Bytes of the state region and where they go in the chunk's buffer.
  struct Run {
    size_t state = 0;
    size_t bytes = 0;
    size_t at = 0;
  };
  struct Layout {
    std::byte* buffer = nullptr;
    std::vector<Run> runs;
  };

  CudaMoments(const CompiledPlan* plan, StateRegion* host, cuda::Device* device);
  absl::Status Allocate(size_t reserve);
  // Adds the piece to the newest chunk's layout. Errors: ResourceExhausted.
  absl::Status Place(const Piece& piece);
  // Page-locks the stretches of the state region that are held or copied with them.
  void Pin();
  absl::Status Move(bool up) const;
  absl::Status Copy(const Layout& layout, bool up, cuda::Stream stream) const;

  const CompiledPlan& plan_;
  StateRegion& host_;
  cuda::Device& device_;
  const bool offloaded_;
  int64_t chunk_elements_ = 0;  // of a parameter, when offloaded
  size_t buffer_bytes_ = 0;     // of each
  std::byte* buffers_[2] = {};  // one when not offloaded
  size_t most_pieces_ = 0;
  size_t most_blocks_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Chunk> chunks_;
  std::vector<Layout> layouts_;              // of the chunks
  std::vector<std::vector<float*>> places_;  // by piece, by moment
  size_t filled_ = 0;                        // bytes of the newest chunk
  std::vector<void*> pinned_;
  // By buffer: its chunk is there, has been used, is in the state region again.
  cuda::Event brought_[2] = {};
  cuda::Event used_[2] = {};
  cuda::Event taken_[2] = {};
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_MOMENTS_H_
