// SPDX-License-Identifier: Apache-2.0
// A CPU kernel prepared for one node. Its operands are (region, offset) pairs that are fixed when
// it is prepared; where the regions lie is told at each run, so that the same kernels serve every
// batch and every gradient buffer. Run allocates nothing. Thread-safety: a prepared kernel is
// immutable; it runs on the caller's thread and the pool given.
#ifndef LOCKSTEP_ENGINE_CPU_KERNEL_H_
#define LOCKSTEP_ENGINE_CPU_KERNEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cpu/isa.h"
#include "engine/cpu/thread_pool.h"
#include "engine/graph/graph.h"

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
// Behind the fields: places that move while a kernel is run part by part (converting_kernel.h).
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

struct RunContext {
  std::byte* base[kRegions] = {};
  // Outputs in the gradient vector are added to what is there.
  bool accumulate = false;
  // Sums go on from what an earlier part of the same node has left.
  bool continues = false;
  // Rows of an evaluation block that count.
  int64_t valid_rows = 0;
  ThreadPool* pool = nullptr;

  template <typename T>
  T* At(const Storage& storage) const {
    // As integers: kAbsolute's base is null, and a pointer that is made by adding to a null pointer
    // may be taken for null by the compiler.
    const auto from = reinterpret_cast<uintptr_t>(base[static_cast<int>(storage.region)]);
    return reinterpret_cast<T*>(from + storage.offset);
  }
  // Returns whether an output at `storage` is to be added to.
  bool Adds(const Storage& storage) const {
    return continues || (accumulate && storage.region == Region::kGradients);
  }
};

struct KernelOperands {
  std::vector<Storage> inputs;
  std::vector<Storage> outputs;
  Storage scratch;
  // What CpuKernel::Pack has made of an input. The scratch is then smaller by as much.
  std::optional<Storage> packed;
};

class CpuKernel {
 public:
  virtual ~CpuKernel() = default;
  virtual void Run(const RunContext& context) const = 0;
  // Fills KernelOperands::packed from CpuKernelDef::packed_input, for all runs until that changes.
  // REQUIRES: there is such a place.
  virtual void Pack(const RunContext& context) const { static_cast<void>(context); }
};

// What a kernel is prepared for.
struct CpuTarget {
  Isa isa = Isa::kPortable;
  int threads = 1;
  // bf16 factors of products are multiplied pair by pair (gemm.h) instead of being widened while
  // they are packed: the same bits.
  bool bf16_pairs = false;
};

// Kinds of work, for each of which another instruction set may be the quickest. Those that multiply
// matrices are twice there: of fp32 factors, and of bf16 ones.
enum class OpClass {
  kRows,  // all that is not below: rows, elements, updates
  kImages,
  kProducts,
  kAttention,
  kConvolutions,
  kBf16Products,
  kBf16Attention,
  kBf16Convolutions,
};
inline constexpr int kOpClasses = 8;

// What the kernels of a plan are prepared for, by the class of their op.
struct CpuTargets {
  CpuTargets() = default;
  // The same for every class.
  CpuTargets(const CpuTarget& all) { of.fill(all); }  // NOLINT(google-explicit-constructor)

  const CpuTarget& operator[](OpClass op_class) const { return of[static_cast<size_t>(op_class)]; }
  CpuTarget& operator[](OpClass op_class) { return of[static_cast<size_t>(op_class)]; }

  std::array<CpuTarget, kOpClasses> of;
};

// What a product's factors are: fp32, or pairs of bf16 that are multiplied as they are or widened
// while they are packed, with the same bits.
enum class Factors { kFloats, kPairs, kWidenedPairs };

// As `target` takes them.
inline Factors FactorsOf(bool bf16, const CpuTarget& target) {
  if (!bf16) return Factors::kFloats;
  return target.bf16_pairs ? Factors::kPairs : Factors::kWidenedPairs;
}

struct CpuKernelDef {
  // Bytes of scratch, planned like any other buffer. Null: none.
  size_t (*scratch_bytes)(const Graph& graph, const Node& node, const CpuTarget& target) = nullptr;
  std::unique_ptr<CpuKernel> (*prepare)(const Graph& graph, const Node& node,
                                        const KernelOperands& operands,
                                        const CpuTarget& target) = nullptr;
  // The input that the kernel brings into an order of its own, and the bytes that this takes: the
  // first ones of the scratch in each run or, where the input stays the same, memory of its own
  // that Pack fills once. -1: none.
  int packed_input = -1;
  size_t (*packed_bytes)(const Graph& graph, const Node& node, const CpuTarget& target) = nullptr;
  // Whether the kernel takes the node's 16-bit operands, all of them, as they are. Else, and with
  // null, they come to it in fp32 (converting_kernel.h).
  bool (*takes_half)(const Graph& graph, const Node& node, const CpuTarget& target) = nullptr;
  // That of fp32 factors.
  OpClass op_class = OpClass::kRows;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_KERNEL_H_
