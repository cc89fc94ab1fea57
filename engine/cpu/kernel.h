// SPDX-License-Identifier: Apache-2.0
// A CPU kernel prepared for one node. Its operands (graph/storage.h) are fixed when it is prepared;
// where the regions lie is told at each run, so that the same kernels serve every batch and every
// gradient buffer. Run allocates nothing. Thread-safety: a prepared kernel is
// immutable; it runs on the caller's thread and the pool given.
#ifndef LOCKSTEP_ENGINE_CPU_KERNEL_H_
#define LOCKSTEP_ENGINE_CPU_KERNEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cpu/isa.h"
#include "engine/cpu/thread_pool.h"
#include "engine/graph/graph.h"
#include "engine/graph/storage.h"

namespace lockstep::engine {

struct RunContext {
  std::byte* base[kRegions] = {};
  // Outputs in the gradient vector are added to what is there.
  bool accumulate = false;
  // An earlier part of the same node was the call before: sums go on from what it has left, and
  // what it made in scratch of inputs that are not cut is there.
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
  // Only there: a single run reads the input where it lies, and the scratch has no place for it.
  bool packs_only_once = false;
  size_t (*packed_bytes)(const Graph& graph, const Node& node, const CpuTarget& target) = nullptr;
  // Whether the kernel takes the node's 16-bit operands, all of them, as they are. Else, and with
  // null, they come to it in fp32 (converting_kernel.h).
  bool (*takes_half)(const Graph& graph, const Node& node, const CpuTarget& target) = nullptr;
  // Whether a kernel that takes bf16 takes input 1 in fp32 too and rounds it where the node has
  // kRoundsWeightAttr; whatever the target, as graphs are the same on all. Null: no.
  bool (*rounds_weight)(const Graph& graph, const Node& node) = nullptr;
  // That of fp32 factors.
  OpClass op_class = OpClass::kRows;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_KERNEL_H_
