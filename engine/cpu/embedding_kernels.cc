// SPDX-License-Identifier: Apache-2.0
// Embeddings. The gradient of a table's row is one sum over the positions that hold its token, in
// their order: positions are sorted by token first, and threads take whole rows.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::cpu {
namespace {

class EmbeddingKernel : public CpuKernel {
 public:
  EmbeddingKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : rows_(node.outputs[0].shape[0]),
        columns_(node.outputs[0].shape[1]),
        table_rows_(graph.type(node.inputs[1]).shape[0]),
        table_type_(graph.type(node.inputs[1]).dtype),
        type_(node.outputs[0].dtype),
        half_(HalfKernelsFor(target.isa)),
        operands_(operands),
        threads_(target.threads) {}

  void Run(const RunContext& context) const override {
    const auto* tokens = context.At<int32_t>(operands_.inputs[0]);
    const auto* table = context.At<std::byte>(operands_.inputs[1]);
    auto* out = context.At<std::byte>(operands_.outputs[0]);
    const auto table_bytes = columns_ * static_cast<int64_t>(SizeOf(table_type_));
    const auto bytes = columns_ * static_cast<int64_t>(SizeOf(type_));
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(rows_, index, threads_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = tokens[i];
        if (token < 0 || token >= table_rows_) {
          std::memset(out + i * bytes, 0, static_cast<size_t>(bytes));
        } else {
          PutRow(table + token * table_bytes, out + i * bytes);
        }
      }
    });
  }

 private:
  void PutRow(const std::byte* from, std::byte* to) const {
    if (table_type_ == type_) {
      std::memcpy(to, from, static_cast<size_t>(columns_) * SizeOf(type_));
    } else if (IsHalf(type_)) {
      half_.Narrow(type_, reinterpret_cast<const float*>(from), columns_,
                   reinterpret_cast<uint16_t*>(to));
    } else {
      half_.Widen(table_type_, reinterpret_cast<const uint16_t*>(from), columns_,
                  reinterpret_cast<float*>(to));
    }
  }

  const int64_t rows_;
  const int64_t columns_;
  const int64_t table_rows_;
  const DType table_type_;
  const DType type_;
  const HalfKernels& half_;
  const KernelOperands operands_;
  const int threads_;
};

// Scratch: for each row of the table where its positions begin in `order`, and the end; then the
// positions by token.
class EmbeddingBackwardKernel : public CpuKernel {
 public:
  EmbeddingBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                          const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        positions_(graph.type(node.inputs[0]).elements()),
        rows_(node.outputs[0].shape[0]),
        columns_(node.outputs[0].shape[1]),
        operands_(operands),
        threads_(target.threads) {}

  static size_t ScratchBytes(const Graph& graph, const Node& node, const CpuTarget&) {
    return static_cast<size_t>(node.outputs[0].shape[0] + 2 +
                               graph.type(node.inputs[0]).elements()) *
           sizeof(int32_t);
  }

  void Run(const RunContext& context) const override {
    auto* starts = context.At<int32_t>(operands_.scratch);
    int32_t* order = starts + rows_ + 2;
    Sort(context.At<int32_t>(operands_.inputs[0]), starts, order);
    const auto* dy = context.At<float>(operands_.inputs[1]);
    const Storage& storage = operands_.outputs[0];
    auto* out = context.At<float>(storage);
    const bool based = operands_.inputs.size() == 3;
    const float* base = based ? context.At<float>(operands_.inputs[2]) : nullptr;
    // A base that was born in the output's place has added to what was there already.
    const bool adds = base == out || context.Adds(storage);
    const size_t bytes = static_cast<size_t>(columns_) * sizeof(float);
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(rows_, index, threads_);
      for (int64_t row = begin; row < end; ++row) {
        float* sum = out + row * columns_;
        if (base != out && base != nullptr) {
          const float* from = base + row * columns_;
          simd_.scale(from, 1, columns_, adds, sum);
        } else if (!adds) {
          std::memset(sum, 0, bytes);
        }
        for (int32_t at = starts[row]; at < starts[row + 1]; ++at) {
          simd_.add(sum, dy + int64_t{order[at]} * columns_, columns_, sum);
        }
      }
    });
  }

 private:
  // Counting sort; positions of one token stay in order. starts[row + 1] is where the next row's
  // begin once all are placed.
  void Sort(const int32_t* tokens, int32_t* starts, int32_t* order) const {
    std::fill(starts, starts + rows_ + 2, 0);
    const auto valid = [&](int32_t token) { return token >= 0 && token < rows_; };
    for (int64_t i = 0; i < positions_; ++i) {
      if (valid(tokens[i])) ++starts[tokens[i] + 2];
    }
    for (int64_t row = 0; row < rows_; ++row) starts[row + 2] += starts[row + 1];
    for (int64_t i = 0; i < positions_; ++i) {
      if (valid(tokens[i])) order[starts[tokens[i] + 1]++] = static_cast<int32_t>(i);
    }
  }

  const SimdKernels& simd_;
  const int64_t positions_;
  const int64_t rows_;
  const int64_t columns_;
  const KernelOperands operands_;
  const int threads_;
};

class AddPositionsKernel : public CpuKernel {
 public:
  AddPositionsKernel(const Graph&, const Node& node, const KernelOperands& operands,
                     const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(node.outputs[0].shape[0]),
        columns_(node.outputs[0].shape[1]),
        length_(node.attrs.Int("length")),
        operands_(operands),
        threads_(target.threads) {}

  void Run(const RunContext& context) const override {
    const auto* x = context.At<float>(operands_.inputs[0]);
    const auto* table = context.At<float>(operands_.inputs[1]);
    auto* out = context.At<float>(operands_.outputs[0]);
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(rows_, index, threads_);
      for (int64_t i = begin; i < end; ++i) {
        simd_.add(x + i * columns_, table + i % length_ * columns_, columns_, out + i * columns_);
      }
    });
  }

 private:
  const SimdKernels& simd_;
  const int64_t rows_;
  const int64_t columns_;
  const int64_t length_;
  const KernelOperands operands_;
  const int threads_;
};

class AddPositionsBackwardKernel : public CpuKernel {
 public:
  AddPositionsBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                             const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        sequences_(graph.type(node.inputs[0]).shape[0] / node.attrs.Int("length")),
        rows_(node.outputs[0].shape[0]),
        columns_(node.outputs[0].shape[1]),
        length_(node.attrs.Int("length")),
        operands_(operands),
        threads_(target.threads) {}

  void Run(const RunContext& context) const override {
    const auto* dy = context.At<float>(operands_.inputs[0]);
    const Storage& storage = operands_.outputs[0];
    auto* out = context.At<float>(storage);
    const bool adds = context.Adds(storage);
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(rows_, index, threads_);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sequences = row < length_ ? sequences_ : 0;
        if (sequences == 0 && adds) continue;
        simd_.sum_rows(dy + row * columns_, length_ * columns_, sequences, columns_, adds,
                       out + row * columns_);
      }
    });
  }

 private:
  const SimdKernels& simd_;
  const int64_t sequences_;
  const int64_t rows_;
  const int64_t columns_;
  const int64_t length_;
  const KernelOperands operands_;
  const int threads_;
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

// Rows are read in any type: a table in 16 bits is not widened as a whole.
bool TakesAnyType(const Graph&, const Node&, const CpuTarget&) { return true; }

}  // namespace

const CpuKernelDef kEmbedding = {.prepare = Prepare<EmbeddingKernel>, .takes_half = TakesAnyType};
const CpuKernelDef kEmbeddingBackward = {EmbeddingBackwardKernel::ScratchBytes,
                                         Prepare<EmbeddingBackwardKernel>};
const CpuKernelDef kAddPositions = {nullptr, Prepare<AddPositionsKernel>};
const CpuKernelDef kAddPositionsBackward = {nullptr, Prepare<AddPositionsBackwardKernel>};

}  // namespace lockstep::engine::cpu
