// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/converting_kernel.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/round_up.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/graph/op.h"
#include "engine/ops/conv_method.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// What the fp32 copies of a block may take: they stay in the second-level cache.
constexpr int64_t kBlockBytes = 512 * 1024;
// A matrix product reads its whole other factor for each block: it gets at least so many rows
// (pixels, of images; more of them, since a convolution's filters are larger yet when they are
// transformed).
constexpr int64_t kProductRows = 256;
constexpr int64_t kImagePixels = 768;
constexpr int64_t kLeastRows = 16;
constexpr int64_t kElementwiseBlock = 32 * 1024;
constexpr size_t kAlign = 64;

bool Has(uint32_t bits, size_t i) { return (bits >> i & 1) != 0; }

// One input or output of the node.
struct Operand {
  TensorType type;
  bool cut = false;
  bool copied = false;       // through an fp32 copy in scratch
  size_t copy = 0;           // where that lies, bytes from the start of the scratch
  int64_t row_elements = 0;  // of one row, when it is cut

  int64_t ElementsOf(int64_t rows) const { return cut ? rows * row_elements : type.elements(); }
};

// How a node's operands are cut and where their copies lie.
struct Layout {
  Layout(const Graph& graph, const Node& node, const CpuTarget& target);

  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  int64_t rows = 1;   // 1 when nothing is cut
  int64_t block = 1;  // rows of one block
  size_t inner_scratch = 0;
  size_t bytes = 0;
  // The node for a whole block and for the last one, all in fp32.
  Graph whole;
  Graph rest;
  bool has_rest() const { return rows % block != 0; }

 private:
  void Cut(const Node& node);
  void ChooseBlock(const Node& node);
  void PlaceCopies(const Node& node);
  Graph MakeInner(const Node& node, int64_t block_rows) const;
};

Layout::Layout(const Graph& graph, const Node& node, const CpuTarget& target) {
  for (const Value& input : node.inputs) inputs.push_back({graph.type(input)});
  for (const TensorType& type : node.outputs) outputs.push_back({type});
  for (Operand& operand : inputs) operand.copied = IsHalf(operand.type.dtype);
  for (Operand& operand : outputs) operand.copied = IsHalf(operand.type.dtype);
  Cut(node);
  ChooseBlock(node);
  PlaceCopies(node);
  whole = MakeInner(node, block);
  if (has_rest()) rest = MakeInner(node, rows % block);
  for (const Graph* inner : {&whole, &rest}) {
    if (inner->nodes().empty()) continue;
    const Node& last = inner->nodes().back();
    const CpuKernelDef& kernel = CpuKernelOf(*last.op);
    if (kernel.scratch_bytes == nullptr) continue;
    inner_scratch = std::max(inner_scratch, kernel.scratch_bytes(*inner, last, target));
  }
  bytes += RoundUp(inner_scratch, kAlign);
}

void Layout::Cut(const Node& node) {
  const HalfRules& rules = node.op->half;
  const uint32_t all = (1u << outputs.size()) - 1;
  if (!rules.elementwise && ((rules.cut_outputs | rules.sums) & all) != all) return;
  const auto cut = [&](Operand* operand) {
    operand->cut = true;
    rows = rules.elementwise ? operand->type.elements() : operand->type.shape[0];
    operand->row_elements = operand->type.elements() / rows;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (rules.elementwise || Has(rules.cut_inputs, i)) cut(&inputs[i]);
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (rules.elementwise || Has(rules.cut_outputs, o)) cut(&outputs[o]);
  }
}

void Layout::ChooseBlock(const Node& node) {
  const HalfRules& rules = node.op->half;
  if (rules.elementwise) {
    block = std::min(rows, kElementwiseBlock);
    return;
  }
  int64_t row_values = 0, pixels = 1;
  bool any = false, images = false;
  for (const std::vector<Operand>* operands : {&inputs, &outputs}) {
    for (const Operand& operand : *operands) {
      if (!operand.cut) continue;
      any = true;
      if (operand.copied) row_values += operand.row_elements;
      if (operand.type.shape.size() == 4) {
        images = true;
        pixels = std::max(pixels, operand.type.shape[1] * operand.type.shape[2]);
      }
    }
  }
  if (!any) return;
  if (images && rules.sums != 0) {
    block = SummedImages(rows, row_values, pixels);
    return;
  }
  const int64_t product_rows = pixels > 1 ? kImagePixels : kProductRows;
  const int64_t least = rules.rounded != 0 ? (product_rows + pixels - 1) / pixels
                        : pixels > 1       ? 1
                                           : kLeastRows;
  const int64_t fit = kBlockBytes / (row_values * static_cast<int64_t>(sizeof(float)) + 1);
  block = std::clamp(fit, std::min(least, rows), rows);
}

// A result may be made in the copy of an input that the op allows it to be written over.
void Layout::PlaceCopies(const Node& node) {
  const auto place = [&](Operand* operand) {
    operand->copy = bytes;
    bytes += RoundUp(static_cast<size_t>(operand->ElementsOf(block)) * sizeof(float), kAlign);
  };
  for (Operand& input : inputs) {
    if (input.copied) place(&input);
  }
  std::vector<bool> taken(inputs.size(), false);
  for (size_t o = 0; o < outputs.size(); ++o) {
    Operand& output = outputs[o];
    if (!output.copied) continue;
    bool shared = false;
    for (const auto& [i, at] : node.op->in_place) {
      const auto input = static_cast<size_t>(i);
      if (static_cast<size_t>(at) != o || input >= inputs.size() || taken[input]) continue;
      if (!inputs[input].copied || inputs[input].cut != output.cut ||
          inputs[input].ElementsOf(block) != output.ElementsOf(block)) {
        continue;
      }
      output.copy = inputs[input].copy;
      taken[input] = shared = true;
      break;
    }
    if (!shared) place(&output);
  }
}

Graph Layout::MakeInner(const Node& node, int64_t block_rows) const {
  Graph graph;
  std::vector<Value> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorType type = inputs[i].type;
    if (inputs[i].copied) type.dtype = DType::kF32;
    if (inputs[i].cut && node.op->half.elementwise) {
      type.shape = {block_rows};
    } else if (inputs[i].cut) {
      type.shape[0] = block_rows;
    }
    leaves.push_back(graph.AddLeaf(ops::kInput, type, absl::StrCat(i)));
  }
  Attrs attrs = node.attrs;
  attrs.Set(kDTypeAttr, std::string(Name(DType::kF32)));
  if (block_rows < rows) attrs.Set(kWholeRowsAttr, rows);
  graph.Add(*node.op, leaves, attrs, node.name);
  LS_CHECK(graph.status().ok()) << node.op->name << ": " << graph.status();
  return graph;
}

class ConvertingKernel : public CpuKernel {
 public:
  ConvertingKernel(Layout layout, const Node& node, const KernelOperands& operands,
                   const CpuTarget& target)
      : half_(HalfKernelsFor(target.isa)), layout_(std::move(layout)), operands_(operands) {
    KernelOperands inner;
    inner.scratch = ScratchAt(layout_.bytes - RoundUp(layout_.inner_scratch, kAlign));
    for (size_t i = 0; i < layout_.inputs.size(); ++i) {
      inner.inputs.push_back(InnerStorage(layout_.inputs[i], operands.inputs[i]));
    }
    for (size_t o = 0; o < layout_.outputs.size(); ++o) {
      inner.outputs.push_back(InnerStorage(layout_.outputs[o], operands.outputs[o]));
    }
    whole_ = PrepareInner(layout_.whole, inner, target);
    if (layout_.has_rest()) rest_ = PrepareInner(layout_.rest, inner, target);
  }

  void Run(const RunContext& context) const override {
    RunContext inner = context;
    for (size_t i = 0; i < layout_.inputs.size(); ++i) {
      if (!layout_.inputs[i].cut) Widen(i, 0, 1, context);
    }
    for (int64_t row = 0; row < layout_.rows; row += layout_.block) {
      const int64_t count = std::min(layout_.block, layout_.rows - row);
      for (size_t i = 0; i < layout_.inputs.size(); ++i) {
        if (layout_.inputs[i].cut) Widen(i, row, count, context);
      }
      for (const Moving& moving : moving_) {
        inner.base[static_cast<int>(moving.region)] =
            context.At<std::byte>(moving.storage) + static_cast<size_t>(row) * moving.row_bytes;
      }
      inner.continues = row > 0;
      inner.valid_rows = std::clamp<int64_t>(context.valid_rows - row, 0, count);
      (count == layout_.block ? whole_ : rest_)->Run(inner);
      for (size_t o = 0; o < layout_.outputs.size(); ++o) Narrow(o, row, count, context);
    }
  }

 private:
  // An fp32 or integer operand that is cut: the kernel finds it at a base that moves on.
  struct Moving {
    Region region;
    Storage storage;
    size_t row_bytes;
  };

  Storage ScratchAt(size_t bytes) const {
    return {operands_.scratch.region, operands_.scratch.offset + bytes};
  }
  Storage InnerStorage(const Operand& operand, const Storage& storage) {
    if (operand.copied) return ScratchAt(operand.copy);
    if (!operand.cut) return storage;
    LS_CHECK_LT(moving_.size(), static_cast<size_t>(kMovingRegions));
    const auto region = static_cast<Region>(kFirstMoving + static_cast<int>(moving_.size()));
    moving_.push_back(
        {region, storage, static_cast<size_t>(operand.row_elements) * SizeOf(operand.type.dtype)});
    return {region, 0};
  }
  static std::unique_ptr<CpuKernel> PrepareInner(const Graph& graph, const KernelOperands& operands,
                                                 const CpuTarget& target) {
    const Node& node = graph.nodes().back();
    return CpuKernelOf(*node.op).prepare(graph, node, operands, target);
  }

  void Widen(size_t i, int64_t row, int64_t rows, const RunContext& context) const {
    const Operand& operand = layout_.inputs[i];
    if (!operand.copied) return;
    const auto* from = context.At<uint16_t>(operands_.inputs[i]) + row * operand.row_elements;
    float* to = context.At<float>(ScratchAt(operand.copy));
    ForParts(operand.ElementsOf(rows), context.pool, [&](int64_t at, int64_t count) {
      half_.Widen(operand.type.dtype, from + at, count, to + at);
    });
  }
  void Narrow(size_t o, int64_t row, int64_t rows, const RunContext& context) const {
    const Operand& operand = layout_.outputs[o];
    if (!operand.copied) return;
    const float* from = context.At<float>(ScratchAt(operand.copy));
    auto* to = context.At<uint16_t>(operands_.outputs[o]) + row * operand.row_elements;
    ForParts(operand.ElementsOf(rows), context.pool, [&](int64_t at, int64_t count) {
      half_.Narrow(operand.type.dtype, from + at, count, to + at);
    });
  }

  const HalfKernels& half_;
  const Layout layout_;
  const KernelOperands operands_;
  std::vector<Moving> moving_;
  std::unique_ptr<CpuKernel> whole_;
  std::unique_ptr<CpuKernel> rest_;
};

bool Converts(const Graph& graph, const Node& node, const CpuTarget& target) {
  if (node.op->infers_types || !HasHalfOperand(graph, node)) return false;
  const CpuKernelDef& kernel = CpuKernelOf(*node.op);
  return kernel.takes_half == nullptr || !kernel.takes_half(graph, node, target);
}

// The class of the node's work.
OpClass ClassOf(const Graph& graph, const Node& node) {
  const OpClass of_floats = CpuKernelOf(*node.op).op_class;
  if (graph.type(node.inputs[0]).dtype != DType::kBF16) return of_floats;
  switch (of_floats) {
    case OpClass::kProducts:
      return OpClass::kBf16Products;
    case OpClass::kAttention:
      return OpClass::kBf16Attention;
    case OpClass::kConvolutions:
      return OpClass::kBf16Convolutions;
    default:
      return of_floats;
  }
}

}  // namespace

bool HasHalfOperand(const Graph& graph, const Node& node) {
  for (const Value& input : node.inputs) {
    if (IsHalf(graph.type(input).dtype)) return true;
  }
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [](const TensorType& type) { return IsHalf(type.dtype); });
}

bool IsAllBf16(const Graph& graph, const Node& node, const CpuTarget& /*target*/) {
  const auto is = [](const TensorType& type) { return type.dtype == DType::kBF16; };
  return std::all_of(node.outputs.begin(), node.outputs.end(), is) &&
         std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](const Value& input) { return is(graph.type(input)); });
}

size_t KernelScratchBytes(const Graph& graph, const Node& node, const CpuTargets& targets) {
  const CpuTarget& target = targets[ClassOf(graph, node)];
  if (Converts(graph, node, target)) return Layout(graph, node, target).bytes;
  const CpuKernelDef& kernel = CpuKernelOf(*node.op);
  return kernel.scratch_bytes != nullptr ? kernel.scratch_bytes(graph, node, target) : 0;
}

size_t KernelPackedBytes(const Graph& graph, const Node& node, const CpuTargets& targets) {
  const CpuTarget& target = targets[ClassOf(graph, node)];
  const CpuKernelDef& kernel = CpuKernelOf(*node.op);
  if (kernel.packed_input < 0 || Converts(graph, node, target)) return 0;
  return kernel.packed_bytes(graph, node, target);
}

std::unique_ptr<CpuKernel> PrepareKernel(const Graph& graph, const Node& node,
                                         const KernelOperands& operands,
                                         const CpuTargets& targets) {
  const CpuTarget& target = targets[ClassOf(graph, node)];
  if (!Converts(graph, node, target)) {
    return CpuKernelOf(*node.op).prepare(graph, node, operands, target);
  }
  return std::make_unique<ConvertingKernel>(Layout(graph, node, target), node, operands, target);
}

}  // namespace lockstep::engine
