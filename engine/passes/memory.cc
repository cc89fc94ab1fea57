// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/round_up.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr size_t kAlign = 64;

// Stretches of the arena; those that overlap or touch are one.
class Stretches {
 public:
  void Add(size_t begin, size_t end) {
    auto it = ends_.upper_bound(begin);
    if (it != ends_.begin() && std::prev(it)->second >= begin) {
      --it;
      begin = it->first;
    }
    while (it != ends_.end() && it->first <= end) {
      end = std::max(end, it->second);
      it = ends_.erase(it);
    }
    ends_.emplace_hint(it, begin, end);
  }
  // Returns the end of the last stretch that overlaps [begin, end), which is beyond `begin`; else
  // `begin`.
  size_t Behind(size_t begin, size_t end) const {
    const auto it = ends_.lower_bound(end);
    return it == ends_.begin() ? begin : std::max(begin, std::prev(it)->second);
  }

 private:
  std::map<size_t, size_t> ends_;  // by their begin
};

// What is taken of the arena and when: a tree over the times, so that neither what is placed nor
// what is asked looks at every buffer.
class TakenPlaces {
 public:
  // For times from 0 to `last`.
  explicit TakenPlaces(int last) {
    while (leaves_ <= last) leaves_ *= 2;
    spans_.resize(2 * static_cast<size_t>(leaves_));
  }

  // Returns the lowest offset, a multiple of kAlign, at which nothing is taken of the buffer's
  // bytes in its life, and takes them.
  size_t Take(size_t bytes, int first, int last) {
    std::vector<const Stretches*> in_life;
    Find(1, 0, leaves_, first, last, &in_life);
    size_t offset = 0;
    for (size_t free = 0; free < in_life.size();) {  // how many were asked since it moved
      for (const Stretches* stretches : in_life) {
        const size_t behind = stretches->Behind(offset, offset + bytes);
        free = behind == offset ? free + 1 : 0;
        offset = behind;
      }
    }
    if (bytes > 0) Add(1, 0, leaves_, first, last, offset, RoundUp(offset + bytes, kAlign));
    return offset;
  }

 private:
  struct Span {
    Stretches any;    // taken at some time of the span
    Stretches whole;  // taken all through it, but not through its parent
  };

  // Gathers what is taken at some time from `first` to `last`, of node `at` and what is below it,
  // which spans [begin, end).
  void Find(size_t at, int begin, int end, int first, int last,
            std::vector<const Stretches*>* found) const {
    if (last < begin || first >= end) return;
    if (first <= begin && end - 1 <= last) {
      found->push_back(&spans_[at].any);
      return;
    }
    found->push_back(&spans_[at].whole);
    const int middle = begin + (end - begin) / 2;
    Find(2 * at, begin, middle, first, last, found);
    Find(2 * at + 1, middle, end, first, last, found);
  }
  void Add(size_t at, int begin, int end, int first, int last, size_t from, size_t to) {
    if (last < begin || first >= end) return;
    spans_[at].any.Add(from, to);
    if (first <= begin && end - 1 <= last) {
      spans_[at].whole.Add(from, to);
      return;
    }
    const int middle = begin + (end - begin) / 2;
    Add(2 * at, begin, middle, first, last, from, to);
    Add(2 * at + 1, middle, end, first, last, from, to);
  }

  int leaves_ = 1;
  std::vector<Span> spans_;  // that of all times is 1; those of its halves are 2 and 3
};

class Planner {
 public:
  Planner(const Graph& graph, const std::map<Value, Storage>& fixed, const Backend& backend,
          const MemoryOptions& options)
      : graph_(graph),
        fixed_(fixed),
        backend_(backend),
        options_(options),
        groups_(backend.Groups(graph)) {}

  MemoryPlan Run() {
    if (options_.keep_constants) FindConstants();
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

  int count() const { return static_cast<int>(graph_.nodes().size()); }
  // When a node runs: those of a group when the last of them does.
  int TimeOf(int id) const {
    return plan_.TimeOf(groups_.empty() ? id : groups_[static_cast<size_t>(id)]);
  }

  bool IsParameter(int id) const { return graph_.node(id).op == &ops::kParameter; }
  bool IsConstant(int id) const { return IsParameter(id) || plan_.RunsOnce(id); }

  // Nodes that run once, and the kernels that pack an input once.
  void FindConstants() {
    plan_.once.resize(graph_.nodes().size());
    plan_.runs_begin = count();
    for (int id = 0; id < count(); ++id) {
      const Node& node = graph_.node(id);
      if (node.op->leaf) continue;
      plan_.once[static_cast<size_t>(id)] =
          std::all_of(node.inputs.begin(), node.inputs.end(),
                      [&](const Value& input) { return IsConstant(input.node); });
      if (node.op->view || plan_.RunsOnce(id)) continue;
      const std::optional<PackedInput> packed = backend_.Packs(graph_, node);
      if (packed.has_value() && IsConstant(node.inputs[packed->input].node)) {
        packed_[id] = {*packed, 0};
      }
    }
  }

  // When `reader` reads `value` for the last time; the graph's outputs are a reader behind all.
  int TimeOfRead(Value value, int reader) const {
    const auto packed = packed_.find(reader);
    if (packed != packed_.end() && graph_.node(reader).inputs[packed->second.made.input] == value) {
      return reader;
    }
    const int time = reader == count() ? plan_.runs_begin + reader : TimeOf(reader);
    // What every run reads is there for the next one too.
    const bool kept = plan_.RunsOnce(value.node) && time >= plan_.runs_begin;
    return kept ? plan_.runs_begin + count() : time;
  }

  void FindLastReads() {
    const auto readers = graph_.Readers();
    for (int id = 0; id < static_cast<int>(readers.size()); ++id) {
      for (int o = 0; o < static_cast<int>(readers[static_cast<size_t>(id)].size()); ++o) {
        int last = TimeOf(id);
        for (const int reader : readers[static_cast<size_t>(id)][static_cast<size_t>(o)]) {
          last = std::max(last, TimeOfRead({id, o}, reader));
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
      size_t bytes = backend_.ScratchBytes(graph_, node);
      if (const auto packed = packed_.find(id); packed != packed_.end()) {
        packed->second.buffer = plan_.buffers.size();
        plan_.buffers.push_back({packed->second.made.bytes, 0, id, plan_.runs_begin + count(),
                                 absl::StrCat("%", id, " packed")});
        if (packed->second.made.in_scratch) bytes -= packed->second.made.bytes;
      }
      if (bytes == 0) continue;
      scratch_[id] = plan_.buffers.size();
      const int time = TimeOf(id);
      plan_.buffers.push_back({bytes, 0, time, time, absl::StrCat("%", id, " scratch")});
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
    plan_.buffers.push_back({graph_.type(value).bytes(), 0, TimeOf(id), last_read_[value],
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
      // Of every value that lies there: views and in-place chains too.
      const int last = plan_.buffers[home.buffer].last;
      if (last != TimeOf(id) || SharedByOther(id, i, home)) continue;
      return &home;
    }
    return nullptr;
  }
  // Returns whether another input or an output of the node lies in the same buffer.
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
    const int end = plan_.runs_begin + count();
    TakenPlaces taken(end);
    for (const size_t index : order) {
      ArenaBuffer& buffer = buffers[index];
      buffer.offset = options_.reuse ? taken.Take(buffer.bytes, buffer.first, buffer.last)
                                     : taken.Take(buffer.bytes, 0, end);
      plan_.arena_bytes =
          std::max(plan_.arena_bytes, RoundUp(buffer.offset + buffer.bytes, kAlign));
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
    if (const auto it = packed_.find(id); it != packed_.end()) {
      operands.packed = {Region::kArena, plan_.buffers[it->second.buffer].offset};
    }
  }

  const Graph& graph_;
  const std::map<Value, Storage>& fixed_;
  const Backend& backend_;
  const MemoryOptions options_;
  const std::vector<int> groups_;
  std::map<Value, int> last_read_;
  std::map<Value, Home> homes_;
  std::map<int, size_t> scratch_;
  struct Packed {
    PackedInput made;
    size_t buffer;
  };
  std::map<int, Packed> packed_;
  MemoryPlan plan_;
};

}  // namespace

std::string MemoryPlan::ToText() const {
  std::string text;
  for (const ArenaBuffer& buffer : buffers) {
    absl::StrAppend(&text, "arena[", buffer.offset, ", ", buffer.offset + buffer.bytes, ") ",
                    once.empty() ? "nodes " : "times ", buffer.first, "..", buffer.last, ": ",
                    buffer.what, "\n");
  }
  if (!once.empty()) {
    absl::StrAppend(&text, "each run begins at time ", runs_begin, "; once before:");
    for (int id = 0; id < static_cast<int>(once.size()); ++id) {
      if (RunsOnce(id)) absl::StrAppend(&text, " %", id);
      if (Packs(id)) absl::StrAppend(&text, " %", id, ".Pack");
    }
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, "arena_bytes = ", arena_bytes, "\n");
  return text;
}

MemoryPlan PlanMemory(const Graph& graph, const std::map<Value, Storage>& fixed,
                      const Backend& backend, const MemoryOptions& options) {
  return Planner(graph, fixed, backend, options).Run();
}

}  // namespace lockstep::engine
