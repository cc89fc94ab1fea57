// SPDX-License-Identifier: Apache-2.0
#include "collectives/operation.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "collectives/reduce.h"
#include "common/hash_bytes.h"

namespace lockstep {
namespace {

bool Reduces(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter; }

std::string_view OrderName(ReduceOrder order) {
  return order == ReduceOrder::kFixed ? "fixed" : "fastest";
}

}  // namespace

std::string_view OpKindName(OpKind kind) {
  static constexpr std::string_view kNames[] = {
      "nothing",   "tree_reduce", "all_reduce", "reduce_scatter", "all_gather",
      "broadcast", "barrier",     "send",       "recv",           "wait_committed",
      "connect",   "replicate",   "share",      "exchange",       "begin_reduce"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string ToString(const Operation& operation) {
  std::string text;
  if (operation.kind == OpKind::kTreeReduce || operation.kind == OpKind::kBeginReduce) {
    absl::StrAppend(&text, "step ", operation.step, ", bucket ", operation.bucket, ", ");
  }
  absl::StrAppend(&text, std::string(OpKindName(operation.kind)));
  if (operation.kind == OpKind::kNone) return text;
  if (operation.kind == OpKind::kConnect) {
    return absl::StrCat(text, " to generation ", operation.generation);
  }
  if (operation.kind == OpKind::kWaitCommitted) {
    return absl::StrCat(text, " step ", operation.step);
  }
  absl::StrAppend(&text, " ", operation.sequence);
  if (operation.kind == OpKind::kBarrier) return text;
  absl::StrAppend(&text, " ", std::string(DTypeName(operation.dtype)), "[", operation.count, "]");
  if (Reduces(operation.kind)) {
    absl::StrAppend(&text, " ", std::string(ReduceOpName(operation.reduce)), " ",
                    std::string(OrderName(operation.order)));
  }
  if (operation.kind == OpKind::kBroadcast) absl::StrAppend(&text, " from rank ", operation.root);
  if (operation.kind == OpKind::kSend) absl::StrAppend(&text, " to rank ", operation.root);
  if (operation.kind == OpKind::kRecv) absl::StrAppend(&text, " from rank ", operation.root);
  return text;
}

namespace {

uint32_t HashOf(const std::vector<int64_t>& words) {
  const uint64_t hash = HashBytes(words.data(), words.size() * sizeof(int64_t));
  return static_cast<uint32_t>(hash ^ hash >> 32) | 1;  // 0 is nobody's
}

}  // namespace

uint32_t LayoutOf(absl::Span<const std::vector<ElementRange>> wanted) {
  if (wanted.empty()) return 0;
  std::vector<int64_t> words;
  for (const std::vector<ElementRange>& ranges : wanted) {
    words.push_back(static_cast<int64_t>(ranges.size()));
    for (const ElementRange& range : ranges) words.insert(words.end(), {range.begin, range.end});
  }
  return HashOf(words);
}

uint32_t LayoutOf(absl::Span<const RangeTransfer> transfers) {
  std::vector<int64_t> words;
  for (const RangeTransfer& transfer : transfers) {
    words.insert(words.end(), {transfer.begin, transfer.end, transfer.from,
                               static_cast<int64_t>(transfer.to.size())});
    words.insert(words.end(), transfer.to.begin(), transfer.to.end());
  }
  return HashOf(words);
}

absl::Status CallsDiffer(int a, const Operation& call_a, int b, const Operation& call_b) {
  // Who gets what is told where nothing else differs.
  Operation like_a = call_b;
  like_a.layout = call_a.layout;
  const bool only_dealt = like_a == call_a && !(call_a == call_b);
  const auto text = [&](const Operation& call) {
    if (!only_dealt) return ToString(call);
    return call.layout == 0 ? absl::StrCat(ToString(call), " dealt to all")
                            : absl::StrCat(ToString(call), " dealt as ", absl::Hex(call.layout));
  };
  return WithEnd(absl::FailedPreconditionError(absl::StrCat(
                     "the ranks' calls differ: rank ", a, " calls ", text(call_a), ", rank ", b,
                     " calls ", text(call_b), "; do all nodes run the same build of lockstep?")),
                 {EndCause::kMismatch, b});
}

absl::Status CheckSameCall(absl::Span<const Operation> calls, absl::Span<const int> names) {
  const auto name = [&](size_t i) { return names.empty() ? static_cast<int>(i) : names[i]; };
  for (size_t i = 1; i < calls.size(); ++i) {
    if (calls[i] == calls[0]) continue;
    return CallsDiffer(name(0), calls[0], name(i), calls[i]);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
