// SPDX-License-Identifier: Apache-2.0
// What a call of a communicator is: the fingerprint that ranks compare before data moves, and how
// it is written in messages ("all_reduce 4071 f32[25600000] sum"). Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_OPERATION_H_
#define LOCKSTEP_COLLECTIVES_OPERATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"

namespace lockstep {

enum class OpKind : uint8_t {
  kNone,
  kTreeReduce,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSend,
  kRecv,
  kWaitCommitted,
  kConnect,
  kReplicate,
  kShare,
  kExchange,
  kBeginReduce,  // the TreeReduce that follows begins with parts of the vector
};
// The name that messages use: "tree_reduce".
std::string_view OpKindName(OpKind kind);

// Plain data: it lies in shared memory too.
struct Operation {
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kSum;
  ReduceOrder order = ReduceOrder::kFixed;
  int32_t root = -1;  // of a broadcast; the peer of a send or receive
  int64_t generation = 0;
  int64_t sequence = 0;  // counts the calls of a generation, from 1
  int64_t count = 0;     // elements
  int64_t step = 0;      // kTreeReduce, kBeginReduce, kWaitCommitted
  int32_t bucket = 0;    // kTreeReduce, kBeginReduce
  // kTreeReduce, kBeginReduce, kExchange: who gets what, as a hash; 0: everybody all.
  uint32_t layout = 0;
  bool operator==(const Operation&) const = default;
};

// "step 812, bucket 3, tree_reduce 4071 f32[25600000]". Without the layout, which says nothing by
// itself.
std::string ToString(const Operation& operation);

// FailedPrecondition: ranks `a` and `b` make different calls, which both are named; with their
// layouts where nothing else differs.
absl::Status CallsDiffer(int a, const Operation& call_a, int b, const Operation& call_b);

// Returns what stands for it in Operation::layout.
uint32_t LayoutOf(absl::Span<const std::vector<ElementRange>> wanted);
uint32_t LayoutOf(absl::Span<const RangeTransfer> transfers);

// OK when every rank makes the same call; otherwise CallsDiffer of rank 0 and the first rank that
// differs from it. calls[i] is that of rank names[i], or without names of rank i.
absl::Status CheckSameCall(absl::Span<const Operation> calls, absl::Span<const int> names = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_OPERATION_H_
