// SPDX-License-Identifier: Apache-2.0
#include "worker/state/partial_sums.h"

#include <algorithm>
#include <utility>

#include "collectives/tree_sum.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

// Returns whether `left` and `right` are the two halves of a node that is `top` or lies in it.
bool AreHalves(ShardRange top, ShardRange left, ShardRange right) {
  if (left.end != right.begin) return false;
  const ShardRange both{left.begin, right.end};
  ShardRange node = top;
  while (node != both) {
    if (node.size() < 2 || both.begin < node.begin || both.end > node.end) return false;
    const int split = TreeSplit(node);
    if (both.end <= split) {
      node.end = split;
    } else if (both.begin >= split) {
      node.begin = split;
    } else {
      return false;  // straddles the split and is not the node itself
    }
  }
  return TreeSplit(both) == left.end;
}

// Replays the additions for `held` and returns the most buffers in use at once.
int ReplayBuffers(int shards, ShardRange held) {
  const std::vector<ShardRange> whole = WholeNodes(shards, held);
  std::vector<ShardRange> stack;
  size_t most = 0;
  for (int shard = held.begin; shard < held.end; ++shard) {
    stack.push_back({shard, shard + 1});
    most = std::max(most, stack.size());
    while (stack.size() >= 2 &&
           AreHalves({0, shards}, stack[stack.size() - 2], stack[stack.size() - 1])) {
      stack[stack.size() - 2].end = stack.back().end;
      stack.pop_back();
    }
  }
  LS_CHECK_EQ(stack.size(), whole.size());
  return static_cast<int>(most);
}

}  // namespace

int PartialSums::BuffersFor(int shards, ShardRange held) { return ReplayBuffers(shards, held); }

int PartialSums::BuffersForWorstDeal(int shards, int min_workers, int max_workers) {
  int most = 1;
  for (int world = std::max(1, min_workers); world <= std::min(max_workers, shards); ++world) {
    for (int rank = 0; rank < world; ++rank) {
      most = std::max(most, BuffersFor(shards, DealShards(shards, world, rank)));
    }
  }
  return most;
}

PartialSums::PartialSums(int shards, int64_t count, std::vector<float*> buffers,
                         VectorMemory* vectors, int64_t rounded)
    : shards_(shards),
      count_(count),
      rounded_(rounded),
      buffers_(std::move(buffers)),
      vectors_(vectors) {
  LS_CHECK(rounded == 0 || vectors->on_host());
  nodes_.reserve(buffers_.size());
}

void PartialSums::Begin(ShardRange held) {
  if (held != held_) {
    LS_CHECK_LE(BuffersFor(shards_, held), static_cast<int>(buffers_.size()));
    held_ = held;
    whole_.clear();
    for (const ShardRange node : WholeNodes(shards_, held)) {
      whole_.push_back({node, buffers_[whole_.size()]});
    }
  }
  next_shard_ = held.begin;
  parts_end_ = 0;
  nodes_.clear();
}

float* PartialSums::NextLeaf() {
  LS_CHECK_LT(next_shard_, held_.end);
  return buffers_[nodes_.size()];
}

void PartialSums::RoundLeaf(int64_t begin, int64_t end) {
  float* const leaf = buffers_[nodes_.size()];
  end = std::min(end, rounded_);
  if (begin < end) RoundFloats(leaf + begin, leaf + begin, end - begin);
}

absl::Status PartialSums::Add(float* a, const float* b, int64_t begin, int64_t end) {
  const int64_t middle = std::clamp(rounded_, begin, end);
  if (begin < middle) AddRounded(a + begin, b + begin, a + begin, middle - begin);
  return vectors_->Add(a + middle, b + middle, end - middle);
}

absl::Status PartialSums::PartDone(int64_t begin, int64_t end) {
  LS_CHECK_EQ(next_shard_ + 1, held_.end);
  LS_CHECK(begin == parts_end_ && begin <= end && end <= count_);
  parts_end_ = end;
  RoundLeaf(begin, end);
  ShardRange right{next_shard_, next_shard_ + 1};
  for (size_t i = nodes_.size(); i > 0 && AreHalves({0, shards_}, nodes_[i - 1].node, right); --i) {
    LS_RETURN_IF_ERROR(Add(buffers_[i - 1], buffers_[i], begin, end));
    right.begin = nodes_[i - 1].node.begin;
  }
  return absl::OkStatus();
}

absl::Status PartialSums::LeafDone() {
  const int64_t rest = std::exchange(parts_end_, 0);
  RoundLeaf(rest, count_);
  nodes_.push_back({{next_shard_, next_shard_ + 1}, buffers_[nodes_.size()]});
  ++next_shard_;
  bool added = false;
  while (nodes_.size() >= 2) {
    const NodeBuffer& left = nodes_[nodes_.size() - 2];
    const NodeBuffer& right = nodes_.back();
    if (!AreHalves({0, shards_}, left.node, right.node)) break;
    float* const sum = buffers_[nodes_.size() - 2];
    LS_RETURN_IF_ERROR(Add(sum, right.data, rest, count_));
    added = true;
    nodes_[nodes_.size() - 2].node.end = right.node.end;
    nodes_.pop_back();
  }
  // The engine writes the next leaf where the last addend lies, and does not know when it was read.
  return added && next_shard_ < held_.end ? vectors_->Wait() : absl::OkStatus();
}

}  // namespace lockstep::worker
