// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ops/run_node.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "common/half.h"
#include "engine/cpu/converting_kernel.h"

namespace lockstep::engine {
namespace {

// Memory of one value, `shift` elements off its 64-byte alignment, with canaries around it.
class Buffer {
 public:
  Buffer(const TensorType& type, size_t shift)
      : type_(type), words_(type.bytes() / 2 + 128, kCanary) {
    const size_t address = reinterpret_cast<size_t>(words_.data());
    first_ = (64 - address % 64) / 2 % 32 + shift * SizeOf(type.dtype) / 2;
  }
  void* data() { return words_.data() + first_; }
  Storage storage() { return {Region::kAbsolute, reinterpret_cast<size_t>(data())}; }
  void Set(const Doubles& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      switch (type_.dtype) {
        case DType::kBF16:
          static_cast<uint16_t*>(data())[i] = BFloat16::FromFloat(value).bits;
          break;
        case DType::kF16:
          static_cast<uint16_t*>(data())[i] = Float16::FromFloat(value).bits;
          break;
        case DType::kI32:
          static_cast<int32_t*>(data())[i] = static_cast<int32_t>(values[i]);
          break;
        default:
          static_cast<float*>(data())[i] = value;
      }
    }
  }
  Doubles Get() {
    Doubles values;
    for (int64_t i = 0; i < type_.elements(); ++i) values.push_back(At(i));
    return values;
  }
  bool Whole() const {
    for (size_t i = 0; i < words_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + type_.bytes() / 2;
      if (!inside && words_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr uint16_t kCanary = 0x7FDE;  // twice: a NaN as a float
  double At(int64_t i) {
    switch (type_.dtype) {
      case DType::kBF16:
        return static_cast<double>(BFloat16{static_cast<uint16_t*>(data())[i]}.ToFloat());
      case DType::kF16:
        return static_cast<double>(Float16{static_cast<uint16_t*>(data())[i]}.ToFloat());
      case DType::kF64:
        return static_cast<double*>(data())[i];
      case DType::kI32:
        return static_cast<double>(static_cast<int32_t*>(data())[i]);
      default:
        return static_cast<double>(static_cast<float*>(data())[i]);
    }
  }

  TensorType type_;
  std::vector<uint16_t> words_;
  size_t first_;
};

}  // namespace

std::vector<Doubles> RunNode(const Graph& graph, const Node& node,
                             const std::vector<Doubles>& inputs, const RunOptions& options) {
  if (node.op->view) return {inputs[0]};
  const CpuTarget target{options.isa, options.threads, options.bf16_pairs};
  std::vector<std::unique_ptr<Buffer>> in, out;
  KernelOperands operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(std::make_unique<Buffer>(graph.type(node.inputs[i]), options.shift));
    in.back()->Set(inputs[i]);
    operands.inputs.push_back(in.back()->storage());
  }
  RunContext context;
  for (const TensorType& type : node.outputs) {
    out.push_back(std::make_unique<Buffer>(type, options.shift));
    operands.outputs.push_back(out.back()->storage());
    if (!options.accumulate) continue;
    out.back()->Set(Doubles(static_cast<size_t>(type.elements()), 1));
    operands.outputs.back().region = Region::kGradients;  // whose base is null here
    context.accumulate = true;
  }
  const size_t scratch_bytes = KernelScratchBytes(graph, node, target);
  Buffer scratch({DType::kF32, {static_cast<int64_t>(scratch_bytes / 4)}}, 0);
  operands.scratch = scratch.storage();
  ThreadPool pool(options.threads);
  context.pool = &pool;
  context.valid_rows = std::numeric_limits<int64_t>::max();
  PrepareKernel(graph, node, operands, target)->Run(context);
  std::vector<Doubles> results;
  for (const auto& buffer : out) {
    EXPECT_TRUE(buffer->Whole()) << node.op->name << " writes beyond its output";
    results.push_back(buffer->Get());
  }
  for (const auto& buffer : in) EXPECT_TRUE(buffer->Whole());
  EXPECT_TRUE(scratch.Whole()) << node.op->name << " writes beyond its scratch";
  return results;
}

}  // namespace lockstep::engine
