// SPDX-License-Identifier: Apache-2.0
// How a training state is cut into the files of a checkpoint. Parameters and running statistics go
// to model.safetensors, under the names that the final model has; moments, averages and counters to
// training.safetensors. A large state is cut at tensors into as many parts as there are workers to
// write them, and its files are model-00001-of-00004.safetensors and so on. Reading needs none of
// this: every tensor has a name of its own.
//
// Thread-safety: immutable.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_LAYOUT_H_
#define LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_LAYOUT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace lockstep::worker {

// A file of a checkpoint: these entries of the state, in this order.
struct LayoutFile {
  std::string name;
  std::vector<const engine::StateEntry*> entries;
};

class CheckpointLayout {
 public:
  // Below this a part is not worth a writer, a file and a flush of its own.
  static constexpr size_t kPartBytes = size_t{16} << 20;
  // The parts of a state of `bytes` that `world` workers write: one, by rank 0, while it is small.
  static int PartsFor(size_t bytes, int world, size_t part_bytes = kPartBytes);

  // By rank of `world`: the bytes of the state region that its part of a checkpoint has, ascending.
  static std::vector<std::vector<engine::StateRange>> Copies(const engine::Plan& plan, int world);

  // `plan` outlives this.
  CheckpointLayout(const engine::Plan* plan, int parts);

  int parts() const { return static_cast<int>(files_.size()) / 2; }
  // The two files of `part`: of the model and of the rest.
  absl::Span<const LayoutFile> FilesOf(int part) const {
    return absl::MakeConstSpan(files_).subspan(static_cast<size_t>(part) * 2, 2);
  }
  // Of the tensors in them.
  size_t BytesOf(int part) const;
  size_t MostBytes() const;
  // model.safetensors.index.json as Hugging Face's loaders read it. Empty with one part.
  std::string Index() const;

 private:
  std::vector<LayoutFile> files_;
};

// Returns what an entry is called in the files: counters have "lockstep." before their name.
std::string TensorName(const engine::StateEntry& entry);
// "F32", "BF16", ...
std::string TensorDtype(const engine::StateEntry& entry);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_LAYOUT_H_
