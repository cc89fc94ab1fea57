// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/memory.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/ops/op.h"

namespace lockstep::engine {
namespace {

constexpr size_t kAlign = 64;

size_t RoundUp(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class Planner {
 public:
  Planner(const Graph& graph, const std::map<Value, Storage>& fixed, const CpuTarget& target,
          const MemoryOptions& options)
      : graph_(graph), fixed_(fixed), target_(target), options_(options) {}

  MemoryPlan Run() {
    FindLastReads();
    MakeBuffers();
    PlaceBuffers();
    plan_.operands.resize(graph_.nodes().size());
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) FillOperands(id);
    return std::move(plan_);
  }

 private:
  // Where a value lies: fixed storage or a buffer.
  struct Home {
    bool is_fixed = false;
    Storage fixed;
    size_t buffer = 0;
  };

  void FindLastReads() {
    const auto readers = graph_.Readers();
    for (int id = 0; id < static_cast<int>(readers.size()); ++id) {
      for (int o = 0; o < static_cast<int>(readers[static_cast<size_t>(id)].size()); ++o) {
        int last = id;
        for (const int reader : readers[static_cast<size_t>(id)][static_cast<size_t>(o)]) {
          last = std::max(last, reader);
        }
        last_read_[{id, o}] = last;
      }
    }
  }

  void MakeBuffers() {
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      const Node& node = graph_.node(id);
      for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) MakeHome(id, o);
      if (node.op->leaf || node.op->view) continue;
      const size_t bytes = KernelScratchBytes(graph_, node, target_);
      if (bytes == 0) continue;
      scratch_[id] = plan_.buffers.size();
      plan_.buffers.push_back({bytes, 0, id, id, absl::StrCat("%", id, " scratch")});
    }
  }

  void MakeHome(int id, int o) {
    const Node& node = graph_.node(id);
    const Value value{id, o};
    if (const auto it = fixed_.find(value); it != fixed_.end()) {
      homes_[value] = {true, it->second, 0};
      return;
    }
    LS_CHECK(!node.op->leaf) << node.name << " is bound to no memory";
    if (node.op->view) {
      homes_[value] = homes_.at(node.inputs[0]);
      Lengthen(homes_[value], last_read_[value]);
      return;
    }
    if (const Home* home = InPlaceHome(id, o)) {
      homes_[value] = *home;
      Lengthen(homes_[value], last_read_[value]);
      return;
    }
    homes_[value] = {false, {}, plan_.buffers.size()};
    plan_.buffers.push_back({graph_.type(value).bytes(), 0, id, last_read_[value],
                             o == 0 ? absl::StrCat("%", id) : absl::StrCat("%", id, ".", o)});
  }

  void Lengthen(const Home& home, int last) {
    if (home.is_fixed) return;
    ArenaBuffer& buffer = plan_.buffers[home.buffer];
    buffer.last = std::max(buffer.last, last);
  }

  // The home of an input that output `o` may write over, or null.
  const Home* InPlaceHome(int id, int o) const {
    if (!options_.in_place) return nullptr;
    const Node& node = graph_.node(id);
    for (const auto& [i, output] : node.op->in_place) {
      if (output != o || i >= static_cast<int>(node.inputs.size())) continue;
      const Value input = node.inputs[static_cast<size_t>(i)];
      const Home& home = homes_.at(input);
      if (home.is_fixed || graph_.type(input) != graph_.type({id, o})) continue;
      if (LastUse(home) != id || SharedByOther(id, i, home)) continue;
      return &home;
    }
    return nullptr;
  }
  // The last read of every value that lies in the buffer of `home` (views and in-place chains too).
  int LastUse(const Home& home) const {
    int last = 0;
    for (const auto& [value, other] : homes_) {
      if (!other.is_fixed && other.buffer == home.buffer)
        last = std::max(last, last_read_.at(value));
    }
    return last;
  }
  // Whether another input or an output of the node lies in the same buffer.
  bool SharedByOther(int id, int i, const Home& home) const {
    const Node& node = graph_.node(id);
    const auto same = [&](Value value) {
      const auto it = homes_.find(value);
      return it != homes_.end() && !it->second.is_fixed && it->second.buffer == home.buffer;
    };
    for (int other = 0; other < static_cast<int>(node.inputs.size()); ++other) {
      if (other != i && same(node.inputs[static_cast<size_t>(other)])) return true;
    }
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      if (same({id, o})) return true;
    }
    return false;
  }

  // Largest first, each at the lowest offset where no buffer of an overlapping life lies.
  void PlaceBuffers() {
    std::vector<ArenaBuffer>& buffers = plan_.buffers;
    std::vector<size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });
    std::vector<size_t> placed;  // by offset
    for (const size_t index : order) {
      ArenaBuffer& buffer = buffers[index];
      for (const size_t other : placed) {
        const ArenaBuffer& o = buffers[other];
        const bool together = !options_.reuse || (o.first <= buffer.last && buffer.first <= o.last);
        if (!together) continue;
        if (buffer.offset + buffer.bytes <= o.offset) break;
        buffer.offset = std::max(buffer.offset, RoundUp(o.offset + o.bytes));
      }
      placed.push_back(index);
      std::sort(placed.begin(), placed.end(),
                [&](size_t a, size_t b) { return buffers[a].offset < buffers[b].offset; });
      plan_.arena_bytes = std::max(plan_.arena_bytes, RoundUp(buffer.offset + buffer.bytes));
    }
  }

  Storage StorageOf(Value value) const {
    const Home& home = homes_.at(value);
    return home.is_fixed ? home.fixed : Storage{Region::kArena, plan_.buffers[home.buffer].offset};
  }

  void FillOperands(int id) {
    const Node& node = graph_.node(id);
    KernelOperands& operands = plan_.operands[static_cast<size_t>(id)];
    for (const Value& input : node.inputs) operands.inputs.push_back(StorageOf(input));
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      operands.outputs.push_back(StorageOf({id, o}));
    }
    if (const auto it = scratch_.find(id); it != scratch_.end()) {
      operands.scratch = {Region::kArena, plan_.buffers[it->second].offset};
    }
  }

  const Graph& graph_;
  const std::map<Value, Storage>& fixed_;
  const CpuTarget target_;
  const MemoryOptions options_;
  std::map<Value, int> last_read_;
  std::map<Value, Home> homes_;
  std::map<int, size_t> scratch_;
  MemoryPlan plan_;
};

}  // namespace

std::string MemoryPlan::ToText() const {
  std::string text;
  for (const ArenaBuffer& buffer : buffers) {
    absl::StrAppend(&text, "arena[", buffer.offset, ", ", buffer.offset + buffer.bytes, ") nodes ",
                    buffer.first, "..", buffer.last, ": ", buffer.what, "\n");
  }
  absl::StrAppend(&text, "arena_bytes = ", arena_bytes, "\n");
  return text;
}

MemoryPlan PlanMemory(const Graph& graph, const std::map<Value, Storage>& fixed,
                      const CpuTarget& target, const MemoryOptions& options) {
  return Planner(graph, fixed, target, options).Run();
}

}  // namespace lockstep::engine
