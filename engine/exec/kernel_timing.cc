// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/kernel_timing.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/check.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/kernel_comparison.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/memory.h"
#include "engine/passes/precision.h"

namespace lockstep::engine {
namespace {

// A candidate's time is known when its quickest runs, so many, differ by no more than this.
constexpr size_t kAgreeing = 3;
constexpr double kDifference = 0.03;
// Where they do not agree, beside much other work, the quickest run after so long has to do.
constexpr double kEnoughMicroseconds = 15000;

// Of this thread: what others do on the machine lengthens it less than it does the wall clock's.
double ProcessorMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// A graph under construction, whose leaves are named by their number.
class Sketch {
 public:
  Value Leaf(Shape shape) {
    return graph_.AddLeaf(ops::kInput, {DType::kF32, std::move(shape)}, std::to_string(leaves_++));
  }
  Value Add(const OpDef& op, std::vector<Value> inputs, Attrs attrs = {}) {
    const Value made = graph_.Add(op, std::move(inputs), std::move(attrs));
    LS_CHECK(graph_.status().ok()) << graph_.status();
    graph_.AddOutput(std::to_string(made.node), made);
    return made;
  }
  Graph Done() && { return std::move(graph_); }

 private:
  Graph graph_;
  int leaves_ = 0;
};

void AddRows(Sketch* s) {
  const Value x = s->Leaf({48, 768}), vector = s->Leaf({768});
  const Value y = s->Add(ops::kLayerNorm, {x, vector, vector});
  s->Add(ops::kLayerNormBackwardInput, {x, y, vector, {y.node, 1}, {y.node, 2}});
  s->Add(ops::kSoftmax, {y});
  s->Add(ops::kGelu, {s->Leaf({48, 768})});
}

void AddImages(Sketch* s) {
  const Value x = s->Leaf({4, 14, 14, 64}), vector = s->Leaf({64});
  const Value y =
      s->Add(ops::kBatchNorm, {x, vector, vector}, {{"activation", std::string("relu")}});
  s->Add(ops::kBatchNormBackward, {x, x, vector, {y.node, 1}, {y.node, 2}});
  s->Add(ops::kMaxPool2d, {y}, {{"kernel", Shape{2, 2}}, {"stride", Shape{2, 2}}});
}

void AddProducts(Sketch* s) {
  const Value x = s->Leaf({128, 192}), weight = s->Leaf({192, 192}), bias = s->Leaf({192});
  const Value y = s->Add(ops::kLinear, {x, weight, bias});
  s->Add(ops::kLinearBackwardInput, {y, weight});
  s->Add(ops::kLinearBackwardWeight, {y, x});
}

void AddAttention(Sketch* s) {
  const Value qkv = s->Leaf({128, 3 * 128});
  const Attrs attrs = {{"heads", int64_t{2}}, {"length", int64_t{128}}, {"causal", int64_t{1}}};
  const Value y = s->Add(ops::kAttention, {qkv}, attrs);
  s->Add(ops::kAttentionBackward, {s->Leaf({128, 128}), y, {y.node, 1}, qkv}, attrs);
}

// As products, of 3 x 3 pixels and of single ones. By Winograd's algorithm bf16 is widened on every
// instruction set, so that products alone tell them apart.
void AddConvolutions(Sketch* s) {
  const Value x = s->Leaf({2, 14, 14, 64}), filters = s->Leaf({64, 64, 3, 3});
  const Value wider = s->Leaf({256, 64, 1, 1}), narrower = s->Leaf({64, 256, 1, 1});
  s->Add(ops::kConv2d, {x, filters}, {{"padding", Shape{1, 1}}, {"stride", Shape{2, 2}}});
  const Value y = s->Add(ops::kConv2d, {x, wider});
  s->Add(ops::kConv2d, {y, narrower});
  s->Add(ops::kConv2dBackwardWeight, {y, x}, {{"kernel", Shape{1, 1}}});
}

Graph GraphOf(OpClass op_class) {
  Sketch sketch;
  bool bf16 = false;
  switch (op_class) {
    case OpClass::kRows:
      AddRows(&sketch);
      break;
    case OpClass::kImages:
      AddImages(&sketch);
      break;
    case OpClass::kBf16Products:
      bf16 = true;
      [[fallthrough]];
    case OpClass::kProducts:
      AddProducts(&sketch);
      break;
    case OpClass::kBf16Attention:
      bf16 = true;
      [[fallthrough]];
    case OpClass::kAttention:
      AddAttention(&sketch);
      break;
    case OpClass::kBf16Convolutions:
      bf16 = true;
      [[fallthrough]];
    case OpClass::kConvolutions:
      AddConvolutions(&sketch);
      break;
  }
  Graph graph = std::move(sketch).Done();
  return bf16 ? ApplyPrecision(graph, {DType::kBF16, false}, {}) : graph;
}

struct alignas(64) Line {
  float floats[16];
};
using Lines = std::vector<Line>;

// The leaves of a graph, filled.
std::map<Value, Storage> BindLeaves(const Graph& graph, std::vector<Lines>* memory) {
  std::map<Value, Storage> bound;
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    if (!graph.node(id).op->leaf) continue;
    const auto count = static_cast<size_t>(graph.node(id).outputs[0].elements());
    const std::vector<float> values = MadeValues(static_cast<uint64_t>(id), count);
    Lines& lines = memory->emplace_back(count / 16 + 1);
    std::copy(values.begin(), values.end(), lines[0].floats);
    bound[{id, 0}] = {Region::kAbsolute, reinterpret_cast<uintptr_t>(lines.data())};
  }
  return bound;
}

// The kernels of one candidate on memory of their own.
class Candidate {
 public:
  Candidate(const Graph& graph, const std::map<Value, Storage>& leaves, Isa isa) {
    const CpuTargets targets(CpuTarget{isa, 1, MultipliesPairs(isa)});
    const MemoryPlan plan = PlanMemory(graph, leaves, CpuBackend(targets), {});
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      const Node& node = graph.nodes()[i];
      if (node.op->leaf || node.op->view) continue;
      kernels_.push_back(PrepareKernel(graph, node, plan.operands[i], targets));
    }
    arena_.resize(plan.arena_bytes / sizeof(Line) + 1);
    context_.base[static_cast<int>(Region::kArena)] = reinterpret_cast<std::byte*>(arena_.data());
  }

  // Returns the microseconds that it took.
  double Run(ThreadPool* pool) {
    context_.pool = pool;
    const double start = ProcessorMicroseconds();
    for (const auto& kernel : kernels_) kernel->Run(context_);
    return ProcessorMicroseconds() - start;
  }

 private:
  std::vector<std::unique_ptr<CpuKernel>> kernels_;
  Lines arena_;
  RunContext context_;
};

}  // namespace

std::vector<double> TimeKernels(OpClass op_class, absl::Span<const Isa> candidates) {
  const Graph graph = GraphOf(op_class);
  std::vector<Lines> memory;
  const std::map<Value, Storage> leaves = BindLeaves(graph, &memory);
  std::vector<std::unique_ptr<Candidate>> made;
  for (const Isa isa : candidates) made.push_back(std::make_unique<Candidate>(graph, leaves, isa));
  ThreadPool pool(1);
  double taken = 0;
  for (const auto& candidate : made) taken += candidate->Run(&pool);  // fills the caches
  std::vector<std::vector<double>> times(made.size());                // the quickest ones, sorted
  const auto known = [](const std::vector<double>& of) {
    return of.size() == kAgreeing && of.back() <= of.front() * (1 + kDifference);
  };
  do {
    for (size_t i = 0; i < made.size(); ++i) {
      if (known(times[i])) continue;
      const double microseconds = made[i]->Run(&pool);
      taken += microseconds;
      times[i].insert(std::upper_bound(times[i].begin(), times[i].end(), microseconds),
                      microseconds);
      if (times[i].size() > kAgreeing) times[i].pop_back();
    }
  } while (taken < kEnoughMicroseconds && !std::all_of(times.begin(), times.end(), known));
  std::vector<double> least;
  for (const std::vector<double>& of : times) least.push_back(of.front());
  return least;
}

}  // namespace lockstep::engine
