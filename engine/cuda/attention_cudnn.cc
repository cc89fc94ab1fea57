// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/attention_cudnn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/round_up.h"
#include "common/status.h"
#include "engine/cuda/module.h"
#include "engine/graph/op.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kAlignment = 16;
constexpr int64_t kMostDepth = 128;
constexpr size_t kLeastWorkspace = size_t{256} << 20;
constexpr size_t kMostWorkspace = size_t{4} << 30;
// Of what all nodes of a program give.
constexpr size_t kShare = 8;
constexpr int64_t kTile = 128;         // of the gradients of the scores, in rows and columns
constexpr size_t kRoom = 4096;         // what engines want beside them
constexpr size_t kMostAlgorithms = 8;  // that are tried
// What a row is taken to be at least, of the size of all. A token that sees itself alone has a
// gradient of 0, of which the order of sums makes something.
constexpr double kLeastRow = 0x1p-5;

// Returns whether the arrays lie as the library was told.
bool AreAligned(const Operands& o, size_t outputs, bool backward, Type type) {
  const size_t log_sums = backward ? 2 : 1;
  const auto fits = [&](const TensorType& is, int alignment, bool fp32) {
    return alignment >= kAlignment && TypeOf(is.dtype) == (fp32 ? Type::kF32 : type) &&
           is.elements() <= std::numeric_limits<int32_t>::max();
  };
  for (size_t i = 0; o.has(i); ++i) {
    if (!fits(o.input(i), o.InAlignment(i), backward && i == log_sums)) return false;
  }
  for (size_t i = 0; i < outputs; ++i) {
    if (!fits(o.output(i), o.OutAlignment(i), !backward && i == log_sums)) return false;
  }
  return true;
}

std::string Differs(size_t i, size_t count, double is, double want, double room) {
  return absl::StrFormat("value %d of %d is %g instead of %g, +-%g", i, count, is, want, room);
}

// Attention as one word, by which files name it: equal for equal ones.
std::string DescribeAttention(const CudnnAttentionShape& s) {
  return absl::StrCat(s.backward ? "attention-backward:" : "attention:", s.batch, "x", s.heads, "x",
                      s.length, "x", s.depth, ":", s.stride, ":", NameOf(s.type),
                      s.causal ? ":causal" : "");
}

}  // namespace

bool SuitsCudnn(const ops::AttentionShape& shape, Type type) {
  const int64_t depth = shape.width / shape.heads;
  return type != Type::kF32 && !shape.masked && shape.rate == 0 && shape.queries == shape.length &&
         depth % 8 == 0 && depth <= kMostDepth;
}

CudnnAttentionShape CudnnShapeOf(const ops::AttentionShape& shape, Type type, bool backward) {
  CudnnAttentionShape made;
  made.batch = shape.batch;
  made.heads = shape.heads;
  made.length = shape.length;
  made.depth = shape.width / shape.heads;
  made.stride = shape.packed ? 3 * shape.width : shape.width;
  made.type = type;
  made.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(made.depth)));
  made.causal = shape.causal;
  made.backward = backward;
  return made;
}

size_t MostAttentionWorkspace(const Graph& graph) {
  size_t given = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op->leaf || node.op->view) continue;
    for (const TensorType& output : node.outputs) given += output.bytes();
  }
  return std::clamp(given / kShare, kLeastWorkspace, kMostWorkspace);
}

size_t AttentionWorkspaceBytes(const CudnnAttentionShape& shape, size_t most) {
  const auto length = static_cast<size_t>(RoundUp(shape.length, kTile));
  const size_t bytes = static_cast<size_t>(shape.batch * shape.heads) * length * length * 2 + kRoom;
  return bytes <= most ? bytes : 0;
}

std::string AttentionDisagreement(absl::Span<const float> made, absl::Span<const float> expected,
                                  Type type, int64_t depth) {
  LS_CHECK_EQ(made.size(), expected.size());
  const double unit = type == Type::kBF16 ? 0x1p-8 : 0x1p-11;
  const auto row = static_cast<size_t>(depth);
  double all = 0;
  for (const float x : expected) all += static_cast<double>(x) * static_cast<double>(x);
  const double least = kLeastRow * std::sqrt(all / static_cast<double>(expected.size()));
  for (size_t first = 0; first < made.size(); first += row) {
    double squares = 0;
    for (size_t i = first; i < first + row; ++i) {
      squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    const double size = std::max(least, std::sqrt(squares / static_cast<double>(depth)));
    for (size_t i = first; i < first + row; ++i) {
      const double is = static_cast<double>(made[i]), want = static_cast<double>(expected[i]);
      // The sum's error, and both sides' last rounding.
      const double room = 8 * unit * size + 2 * unit * std::fabs(want);
      if (!(std::fabs(is - want) <= room)) return Differs(i, made.size(), is, want, room);
    }
  }
  return "";
}

std::string LogSumDisagreement(absl::Span<const float> made, absl::Span<const float> expected) {
  LS_CHECK_EQ(made.size(), expected.size());
  constexpr double kLogRoom = 0x1p-13;  // less than one key of 8000 makes
  for (size_t i = 0; i < made.size(); ++i) {
    const double is = static_cast<double>(made[i]), want = static_cast<double>(expected[i]);
    if (!(std::fabs(is - want) <= kLogRoom)) return Differs(i, made.size(), is, want, kLogRoom);
  }
  return "";
}

absl::StatusOr<CudaKernel> ChooseAttention(CudnnTuning* tuning, const Operands& o,
                                           const AttentionNode& node, CudaKernel own) {
  const CudnnAttentionShape& shape = node.shape;
  const std::shared_ptr<const Cudnn>& cudnn = tuning->cudnn();
  if (cudnn->version() < kCudnnForAttention ||
      !AreAligned(o, node.outputs, shape.backward, shape.type)) {
    tuning->CountOwn(shape.backward ? "attention-backward" : "attention", node.own);
    return own;
  }
  const auto attention =
      CudnnAttention::Make(&cudnn->api().backend, {cudnn->handle(), nullptr}, shape);
  const size_t room = std::max(node.workspace_bytes, kCudaWorkspaceBytes);
  std::optional<CudnnWays> ways;
  if (attention.ok()) ways.emplace((*attention)->graph(), room);
  CudnnTuning::Subject subject{DescribeAttention(shape), o, node.outputs, shape.depth, node.own};
  subject.graph = true;
  subject.algorithms = [&]() -> absl::StatusOr<std::vector<CudnnAlgorithm>> {
    LS_RETURN_IF_ERROR(attention.status());
    const DeviceProperties& gpu = tuning->device();
    std::vector<CudnnAlgorithm> ready =
        UnproposedAttention(shape, 10 * gpu.compute_major + gpu.compute_minor, cudnn->version());
    const auto proposed = CudnnPlan::Propose((*attention)->graph(), kMostAlgorithms);
    if (proposed.ok()) {
      ready.insert(ready.end(), proposed->begin(), proposed->end());
    } else if (ready.empty()) {
      return proposed.status();
    }
    return ways->Ready(std::move(ready));
  };
  subject.prepare = [&](const CudnnAlgorithm& algorithm) -> absl::StatusOr<CudaKernel> {
    LS_RETURN_IF_ERROR(attention.status());
    LS_ASSIGN_OR_RETURN(const auto plan, ways->Prepare(algorithm));
    // Members end in the opposite order: plans before their handle.
    struct Way {
      std::shared_ptr<const Cudnn> cudnn;
      std::shared_ptr<const CudnnAttention> attention;
      std::shared_ptr<const CudnnPlan> plan;
    };
    return [o, way = Way{cudnn, *attention, plan}, bind = node.bind,
            at = node.workspace_at](const CudaContext& context) -> Code {
      void* const workspace = way.plan->workspace_bytes() <= kCudaWorkspaceBytes
                                  ? context.workspace
                                  : o.Scratch(context, at);
      const CudnnStatus status =
          way.attention->Run(way.cudnn->handle(), *way.plan, bind(context), workspace);
      return status == 0 ? 0 : kCudnnErrors + status;
    };
  };
  subject.disagreement = [&](size_t output, absl::Span<const float> made,
                             absl::Span<const float> expected) {
    return !shape.backward && output == 1
               ? LogSumDisagreement(made, expected)
               : AttentionDisagreement(made, expected, shape.type, shape.depth);
  };
  return tuning->Choose(subject, std::move(own));
}

absl::Status TryAttention(const Cudnn& cudnn) {
  CudnnAttentionShape shape;
  shape.batch = shape.heads = 1;
  shape.length = shape.depth = 64;
  shape.stride = 3 * shape.depth;
  shape.scale = 0.125f;
  shape.causal = true;
  LS_ASSIGN_OR_RETURN(const auto attention,
                      CudnnAttention::Make(&cudnn.api().backend, {cudnn.handle(), nullptr}, shape));
  LS_ASSIGN_OR_RETURN(std::vector<CudnnAlgorithm> ways,
                      CudnnPlan::Propose(attention->graph(), kMostAlgorithms));
  CudnnWays prepared(attention->graph(), kCudaWorkspaceBytes);
  LS_ASSIGN_OR_RETURN(ways, prepared.Ready(std::move(ways)));
  if (!ways.empty()) return absl::OkStatus();
  return absl::InternalError("no engine gives the same bits in each run");
}

}  // namespace lockstep::engine::cuda
