// SPDX-License-Identifier: Apache-2.0
#include "collectives/tree_sum.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "collectives/tree_kernels.h"
#include "common/check.h"

namespace lockstep {
namespace {

// Floats of one piece of the general path: with a stack of 8 the pieces take 16 KiB, half of L1.
constexpr int64_t kPiece = 512;

std::string Name(ShardRange range) { return absl::StrCat("[", range.begin, ", ", range.end, ")"); }

}  // namespace

void AddFloats(const float* a, const float* b, float* out, int64_t count) {
  BestTreeKernels().add2(a, b, out, count);
}

void AddRounded(const float* a, const float* b, float* out, int64_t count) {
  BestTreeKernels().add2_bf16(a, b, out, count);
}

void RoundFloats(const float* a, float* out, int64_t count) {
  BestTreeKernels().round_bf16(a, out, count);
}

absl::StatusOr<TreeSum> TreeSum::Create(int shards, absl::Span<const ShardRange> nodes) {
  if (shards < 1) return absl::InvalidArgumentError(absl::StrCat(shards, " shards"));
  return CreateFor({0, shards}, nodes);
}

absl::StatusOr<TreeSum> TreeSum::CreateFor(ShardRange top, absl::Span<const ShardRange> nodes) {
  TreeSum sum;
  sum.input_count_ = static_cast<int>(nodes.size());
  size_t next = 0;
  absl::Status status = sum.Append(top, nodes, &next);
  if (!status.ok()) return status;
  if (next != nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", Name(nodes[next]), " is outside of or twice in the shards ", Name(top)));
  }
  int depth = 0, deepest = 0;
  for (const int code : sum.program_) {
    depth += code == kAdd ? -1 : 1;
    deepest = std::max(deepest, depth);
  }
  if (sum.input_count_ == 1) sum.shape_ = Shape::kCopy;
  if (sum.program_ == std::vector<int>{0, 1, kAdd}) sum.shape_ = Shape::kTwo;
  if (sum.program_ == std::vector<int>{0, 1, kAdd, 2, 3, kAdd, kAdd}) sum.shape_ = Shape::kFour;
  if (sum.shape_ == Shape::kGeneral) {
    sum.stack_.resize(static_cast<size_t>(deepest));
    sum.temporaries_.resize(static_cast<size_t>(deepest) * kPiece);
  }
  return sum;
}

absl::Status TreeSum::Append(ShardRange node, absl::Span<const ShardRange> nodes, size_t* next) {
  if (*next >= nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no rank holds the shards ", Name(node)));
  }
  const ShardRange held = nodes[*next];
  if (held == node) {
    program_.push_back(static_cast<int>(*next));
    ++*next;
    return absl::OkStatus();
  }
  if (node.size() < 2 || held.begin != node.begin || held.end > node.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards ", Name(held), " are not a node of the tree inside ", Name(node)));
  }
  const int middle = TreeSplit(node);
  absl::Status status = Append({node.begin, middle}, nodes, next);
  if (status.ok()) status = Append({middle, node.end}, nodes, next);
  program_.push_back(kAdd);
  return status;
}

void TreeSum::Run(absl::Span<const float* const> inputs, float* out, int64_t count,
                  int64_t rounded) {
  LS_CHECK_EQ(static_cast<int>(inputs.size()), input_count_);
  rounded = std::clamp<int64_t>(rounded, 0, count);
  if (rounded > 0) RunPart(inputs, out, 0, rounded, /*rounds=*/true);
  if (rounded < count) RunPart(inputs, out, rounded, count, /*rounds=*/false);
}

void TreeSum::RunPart(absl::Span<const float* const> inputs, float* out, int64_t begin, int64_t end,
                      bool rounds) {
  const TreeKernels& kernels = BestTreeKernels();
  const int64_t count = end - begin;
  const auto input = [&](size_t i) { return inputs[i] + begin; };
  float* const to = out + begin;
  switch (shape_) {
    case Shape::kCopy:  // rounded already
      if (input(0) != to) std::memcpy(to, input(0), static_cast<size_t>(count) * sizeof(float));
      return;
    case Shape::kTwo:
      return (rounds ? kernels.add2_bf16 : kernels.add2)(input(0), input(1), to, count);
    case Shape::kFour:
      return (rounds ? kernels.add4_bf16 : kernels.add4)(input(0), input(1), input(2), input(3), to,
                                                         count);
    case Shape::kGeneral:
      return RunGeneral(inputs, out, begin, end, rounds);
  }
}

void TreeSum::RunGeneral(absl::Span<const float* const> inputs, float* out, int64_t begin,
                         int64_t end, bool rounds) {
  const auto add = rounds ? BestTreeKernels().add2_bf16 : BestTreeKernels().add2;
  // Part d of the temporaries holds the sum that stands at depth d of the stack.
  for (; begin < end; begin += kPiece) {
    const int64_t size = std::min(kPiece, end - begin);
    int depth = 0;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (program_[i] != kAdd) {
        stack_[depth++] = inputs[program_[i]] + begin;
        continue;
      }
      --depth;
      // The last addition writes the result, when every input of this piece has been read.
      const bool last = i + 1 == program_.size();
      float* sum = last ? out + begin : temporaries_.data() + (depth - 1) * kPiece;
      add(stack_[depth - 1], stack_[depth], sum, size);
      stack_[depth - 1] = sum;
    }
  }
}

}  // namespace lockstep
