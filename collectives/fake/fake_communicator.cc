// SPDX-License-Identifier: Apache-2.0
#include "collectives/fake/fake_communicator.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/reduce.h"
#include "common/half.h"
#include "common/status.h"

namespace lockstep {
namespace {

using Nodes = std::map<std::pair<int, int>, const float*>;

// The definition itself: a contributed node is its value, any other the sum of its halves.
// Errors: Internal when a leaf is missing.
absl::StatusOr<float> TreeValue(const Nodes& nodes, ShardRange range, int64_t element,
                                bool rounds) {
  const auto found = nodes.find({range.begin, range.end});
  if (found != nodes.end()) return found->second[element];
  if (range.size() < 2) {
    return absl::InternalError(absl::StrCat("no rank holds shard ", range.begin));
  }
  const int middle = TreeSplit(range);
  LS_ASSIGN_OR_RETURN(const float left, TreeValue(nodes, {range.begin, middle}, element, rounds));
  LS_ASSIGN_OR_RETURN(const float right, TreeValue(nodes, {middle, range.end}, element, rounds));
  return rounds ? BFloat16::FromFloat(left + right).ToFloat() : left + right;
}

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

FakeCommunicator::FakeCommunicator(std::shared_ptr<FakeGroup> group, int64_t generation, int rank,
                                   int world_size, int shards, std::vector<int> hosts,
                                   FlightRecorder* recorder)
    : group_(std::move(group)),
      generation_(generation),
      rank_(rank),
      world_size_(world_size),
      shards_(shards),
      hosts_(std::move(hosts)),
      recorder_(recorder) {}

Operation FakeCommunicator::NewOperation(OpKind kind, int64_t count, DType dtype) const {
  return {.kind = kind,
          .dtype = dtype,
          .generation = generation_,
          .sequence = sequence_ + 1,
          .count = count};
}

absl::Status FakeCommunicator::BeginCall(const Operation& operation, int64_t bytes) {
  if (finished_.ok()) finished_ = group_->aborted();
  LS_RETURN_IF_ERROR(finished_);
  recorder_->Begin(operation, bytes);
  return absl::OkStatus();
}

absl::Status FakeCommunicator::EndCall(const Operation&, absl::Status status) {
  finished_ = std::move(status);
  recorder_->End(finished_.code());
  return finished_;
}

template <typename Body>
absl::Status FakeCommunicator::Run(const Operation& operation, Body body) {
  LS_RETURN_IF_ERROR(
      BeginCall(operation, operation.count * static_cast<int64_t>(SizeOf(operation.dtype))));
  return EndCall(operation, body());
}

absl::Status FakeCommunicator::Announce(const Operation& operation, const void* mine, size_t size,
                                        void* all, absl::Time deadline) {
  FakeCall call;
  call.operation = operation;
  call.buffer = mine;
  LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
  for (size_t r = 0; r < calls.size(); ++r) {
    Copy(static_cast<char*>(all) + r * size, calls[r].buffer, size);
  }
  return Leave(call, deadline);
}

absl::StatusOr<std::vector<FakeCall>> FakeCommunicator::Enter(const FakeCall& call,
                                                              absl::Time deadline) {
  ++sequence_;
  LS_ASSIGN_OR_RETURN(std::vector<FakeCall> calls, group_->Exchange(rank_, call, deadline));
  recorder_->Started();
  std::vector<Operation> operations;
  for (const FakeCall& each : calls) operations.push_back(each.operation);
  LS_RETURN_IF_ERROR(CheckSameCall(operations));
  return calls;
}

absl::Status FakeCommunicator::Leave(const FakeCall& call, absl::Time deadline) {
  return group_->Exchange(rank_, call, deadline).status();
}

absl::StatusOr<absl::Span<const Slice>> FakeCommunicator::TreeReduce(const TreeReduceArgs& args,
                                                                     absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kTreeReduce, args.count, DType::kFloat32);
  call.operation.step = args.step;
  call.operation.bucket = args.bucket;
  if (args.rounded > 0) call.operation.dtype = DType::kBFloat16;
  if (args.count > 0) call.owned = args.result + SliceOf(args.count, world_size_, rank_).begin;
  call.nodes.assign(args.nodes.begin(), args.nodes.end());
  slices_.clear();
  LS_RETURN_IF_ERROR(Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    Nodes nodes;
    for (const FakeCall& each : calls) {
      for (const NodeBuffer& node : each.nodes) nodes[{node.node.begin, node.node.end}] = node.data;
    }
    const ElementRange mine = SliceOf(args.count, world_size_, rank_);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      LS_ASSIGN_OR_RETURN(args.result[i], TreeValue(nodes, {0, shards_}, i, i < args.rounded));
    }
    for (int r = 0; r < world_size_; ++r) {
      const ElementRange range = SliceOf(args.count, world_size_, r);
      slices_.push_back({range.begin, range.end, calls[r].owned});
    }
    newest_ = ReducedStep{args.step, slices_, false};
    LS_RETURN_IF_ERROR(Leave(call, deadline));
    newest_->whole = args.wanted.empty();
    return absl::OkStatus();
  }));
  return absl::MakeConstSpan(slices_);
}

absl::Status FakeCommunicator::AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                                         ReduceOrder order, absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kAllReduce, count, dtype);
  call.operation.reduce = op;
  call.operation.order = order;
  call.buffer = data;
  return Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    std::vector<const void*> inputs;
    for (const FakeCall& each : calls) inputs.push_back(each.buffer);
    std::string result(count * SizeOf(dtype), '\0');
    ReduceInOrder(inputs, result.data(), count, dtype, op);
    LS_RETURN_IF_ERROR(Leave(call, deadline));
    Copy(data, result.data(), result.size());
    return absl::OkStatus();
  });
}

absl::Status FakeCommunicator::ReduceScatter(const void* input, void* output, int64_t count,
                                             DType dtype, ReduceOp op, absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kReduceScatter, count, dtype);
  call.operation.reduce = op;
  call.buffer = input;
  return Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    const size_t part = count * SizeOf(dtype);
    std::vector<const void*> inputs;
    for (const FakeCall& each : calls) {
      inputs.push_back(static_cast<const char*>(each.buffer) + rank_ * part);
    }
    std::string result(part, '\0');
    ReduceInOrder(inputs, result.data(), count, dtype, op);
    LS_RETURN_IF_ERROR(Leave(call, deadline));
    Copy(output, result.data(), part);
    return absl::OkStatus();
  });
}

absl::Status FakeCommunicator::AllGather(const void* input, void* output, int64_t count,
                                         DType dtype, absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kAllGather, count, dtype);
  call.buffer = input;
  return Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    const size_t part = count * SizeOf(dtype);
    std::string result(part * world_size_, '\0');
    for (int r = 0; r < world_size_; ++r) Copy(&result[0] + r * part, calls[r].buffer, part);
    LS_RETURN_IF_ERROR(Leave(call, deadline));
    Copy(output, result.data(), result.size());
    return absl::OkStatus();
  });
}

absl::Status FakeCommunicator::Broadcast(void* data, int64_t count, DType dtype, int root,
                                         absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kBroadcast, count, dtype);
  call.operation.root = root;
  call.buffer = data;
  return Run(call.operation, [&]() -> absl::Status {
    if (root < 0 || root >= world_size_) {
      return absl::InternalError(absl::StrCat(ToString(call.operation), ": no such rank"));
    }
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    if (root != rank_) Copy(data, calls[root].buffer, count * SizeOf(dtype));
    return Leave(call, deadline);
  });
}

absl::Status FakeCommunicator::Send(const void* data, int64_t count, DType dtype, int to,
                                    absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kSend, count, dtype);
  operation.root = to;
  return Run(operation, [&]() -> absl::Status {
    if (to < 0 || to >= world_size_ || to == rank_) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": no peer"));
    }
    group_->Post(rank_, to,
                 {operation, std::string(static_cast<const char*>(data), count * SizeOf(dtype))});
    return absl::OkStatus();
  });
}

absl::Status FakeCommunicator::Recv(void* data, int64_t count, DType dtype, int from,
                                    absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kRecv, count, dtype);
  operation.root = from;
  return Run(operation, [&]() -> absl::Status {
    if (from < 0 || from >= world_size_ || from == rank_) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": no peer"));
    }
    LS_ASSIGN_OR_RETURN(const FakeMessage message, group_->Take(from, rank_, deadline));
    if (message.operation.dtype != dtype || message.operation.count != count) {
      return CallsDiffer(from, message.operation, rank_, operation);
    }
    Copy(data, message.data.data(), message.data.size());
    return absl::OkStatus();
  });
}

absl::Status FakeCommunicator::Barrier(absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kBarrier, 0, DType::kUInt8);
  return Run(call.operation, [&] { return Enter(call, deadline).status(); });
}

absl::Status FakeCommunicator::Replicate(void* data, int64_t bytes, bool have,
                                         absl::Time deadline) {
  FakeCall call;
  call.operation = NewOperation(OpKind::kReplicate, bytes, DType::kUInt8);
  call.buffer = have ? data : nullptr;
  return Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    std::vector<const char*> holders;
    for (const FakeCall& each : calls) {
      if (each.buffer != nullptr) holders.push_back(static_cast<const char*>(each.buffer));
    }
    if (holders.empty()) return absl::InternalError("replicate: no rank has the bytes");
    for (size_t i = 0; i < holders.size() && !have; ++i) {
      const ElementRange slice =
          SliceOf(bytes, static_cast<int>(holders.size()), static_cast<int>(i));
      Copy(static_cast<char*>(data) + slice.begin, holders[i] + slice.begin, slice.size());
    }
    return Leave(call, deadline);
  });
}

absl::StatusOr<Communicator::SharedPieces> FakeCommunicator::Share(
    absl::Span<const SharedPiece> pieces, absl::Time deadline) {
  FakeCall call;
  int64_t bytes = 0;
  for (const SharedPiece& piece : pieces) {
    bytes += static_cast<int64_t>(piece.bytes);
    call.nodes.push_back({{}, static_cast<const float*>(piece.data)});
  }
  call.operation = NewOperation(OpKind::kShare, bytes, DType::kUInt8);
  SharedPieces all;
  LS_RETURN_IF_ERROR(Run(call.operation, [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::vector<FakeCall> calls, Enter(call, deadline));
    for (const FakeCall& each : calls) {
      std::vector<const char*>& places = all.emplace_back();
      for (const NodeBuffer& node : each.nodes) {
        places.push_back(reinterpret_cast<const char*>(node.data));
      }
    }
    return absl::OkStatus();
  }));
  return all;
}

absl::Status FakeCommunicator::WaitCommitted(int64_t step, absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kWaitCommitted, 0, DType::kUInt8);
  operation.step = step;
  return Run(operation, [&]() -> absl::Status {
    if (group_->Committed()[rank_] < step) {
      return absl::InternalError(absl::StrCat("rank ", rank_, " waits for commit ", step,
                                              " which it has not published itself"));
    }
    return group_->WaitCommitted(step, deadline);
  });
}

std::string FakeCommunicator::DescribeState() const {
  const auto record = recorder_->Latest();
  return record.has_value() ? ToString(*record, absl::ToUnixNanos(Clock::Real()->Now()))
                            : "no operation yet";
}

}  // namespace lockstep
