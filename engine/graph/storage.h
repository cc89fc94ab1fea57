// SPDX-License-Identifier: Apache-2.0
// Where the operands of a node lie: (region, offset) pairs that the memory plan fixes and that the
// kernels of both back ends are prepared with. Where the regions lie is told at each run.
// Thread-safety: plain values.
#ifndef LOCKSTEP_ENGINE_GRAPH_STORAGE_H_
#define LOCKSTEP_ENGINE_GRAPH_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::engine {

// Where a value can lie.
enum class Region {
  kArena,
  kState,       // TrainState
  kGradients,   // the shard's gradient vector
  kScalars,     // Scalars of the executor
  kAbsolute,    // the offset is the address itself
  kParameters,  // TrainState, or its averages in the parameters' places
  kKept,        // keys and values of the positions before, while a text is generated
  kField0,      // the first field of the batch; field i is kField0 + i
};
inline constexpr int kMaxFields = 8;
// Behind the fields: places that move while a kernel is run part by part (cpu/converting_kernel.h).
inline constexpr int kMovingRegions = 16;
inline constexpr int kFirstMoving = static_cast<int>(Region::kField0) + kMaxFields;
inline constexpr int kRegions = kFirstMoving + kMovingRegions;

// Where field `index` of the batch lies.
inline Region FieldRegion(size_t index) {
  return static_cast<Region>(static_cast<size_t>(Region::kField0) + index);
}

struct Storage {
  Region region = Region::kArena;
  size_t offset = 0;  // bytes
  bool operator==(const Storage&) const = default;
};

// Values that change from run to run; graph leaves named as the fields.
struct Scalars {
  float loss_seed = 1;  // loss_scale / D
  // What is random is addressed by it: step's low and high half, shard, micro-batch.
  int32_t address[4] = {};
  // Of a decode program: the newest token and its place.
  int32_t token = 0;
  int32_t position = 0;
};

struct KernelOperands {
  std::vector<Storage> inputs;
  std::vector<Storage> outputs;
  Storage scratch;
  // What has been made once of an input (Backend::Packs). The scratch is then smaller by as much.
  std::optional<Storage> packed;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_GRAPH_STORAGE_H_
