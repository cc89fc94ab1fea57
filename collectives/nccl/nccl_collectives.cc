// SPDX-License-Identifier: Apache-2.0
// The collectives on buffers anywhere: on the host they are the control communicator's, on the GPU
// NCCL's, after the call was announced. A sum of floats in fixed order is made as TreeReduce makes
// it, with the ranks as summands; other fixed orders, and messages, go through the host.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/nccl_communicator.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

NcclType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kNcclFloat32;
    case DType::kFloat64:
      return kNcclFloat64;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kUInt8:
      return kNcclUint8;
    case DType::kBFloat16:
      return kNcclBfloat16;
    case DType::kFloat16:
      return kNcclFloat16;
  }
  LS_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return kNcclUint8;
}

NcclReduction ReductionOf(ReduceOp op) {
  if (op == ReduceOp::kSum) return kNcclSum;
  return op == ReduceOp::kMax ? kNcclMax : kNcclMin;
}

}  // namespace

absl::Status NcclCommunicator::CopyAndWait(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || to == from) return absl::OkStatus();
  LS_RETURN_IF_ERROR(memory_->queue()->Copy(to, from, bytes));
  return memory_->Wait();
}

absl::Status NcclCommunicator::ThroughHost(
    const void* input, size_t input_bytes, void* output, size_t output_bytes,
    const std::function<absl::Status(const char* in, char* out)>& body) {
  std::vector<char> in(input_bytes + 1), out(output_bytes + 1);  // never empty
  LS_RETURN_IF_ERROR(CopyAndWait(in.data(), input, input_bytes));
  LS_RETURN_IF_ERROR(body(in.data(), out.data()));
  return CopyAndWait(output, out.data(), output_bytes);
}

absl::Status NcclCommunicator::SumOfRanks(const float* data, absl::Span<const ElementRange> slices,
                                          float* out, const Operation& operation,
                                          absl::Time deadline) {
  std::vector<Source> sources;
  std::vector<int> program;
  for (int r = 0; r < world_size(); ++r) {
    sources.push_back({r, r == rank() ? data : nullptr});
    program.push_back(r);
    if (r > 0) program.push_back(TreeSum::kAdd);
  }
  return SumInOrder(sources, slices, program, out, operation, deadline);
}

absl::Status NcclCommunicator::AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                                         ReduceOrder order, absl::Time deadline) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  const bool in_order = order == ReduceOrder::kFixed;
  const bool floats = dtype == DType::kFloat32 && op == ReduceOp::kSum;
  if (!OnGpu(data)) return control_->AllReduce(data, count, dtype, op, order, deadline);
  if (in_order && !floats) {
    return ThroughHost(data, bytes, data, bytes, [&](const char* in, char* out) {
      std::copy(in, in + bytes, out);
      return control_->AllReduce(out, count, dtype, op, order, deadline);
    });
  }
  Operation operation = plane_->NewOperation(OpKind::kAllReduce, count, dtype);
  operation.reduce = op;
  operation.order = order;
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(Announce(operation, deadline));
    if (count == 0 || world_size() == 1) return absl::OkStatus();
    if (in_order) {
      LS_RETURN_IF_ERROR(AllReduceFloats(static_cast<float*>(data), count, operation, deadline));
    } else {
      LS_RETURN_IF_ERROR(Queue(
          [&] {
            return group_->api().all_reduce(data, data, static_cast<size_t>(count), TypeOf(dtype),
                                            ReductionOf(op), group_->comm(), stream());
          },
          operation, deadline));
    }
    return Finish(operation, deadline);
  });
}

absl::Status NcclCommunicator::AllReduceFloats(float* data, int64_t count,
                                               const Operation& operation, absl::Time deadline) {
  std::vector<ElementRange> slices;
  int64_t longest = 0;
  for (int r = 0; r < world_size(); ++r) {
    slices.push_back(SliceOf(count, world_size(), r));
    longest = std::max(longest, slices.back().size());
  }
  newest_.reset();  // its memory is taken
  LS_ASSIGN_OR_RETURN(float* const gathered, memory_->Result(longest * world_size()));
  LS_RETURN_IF_ERROR(SumOfRanks(data, slices, gathered + rank() * longest, operation, deadline));
  LS_RETURN_IF_ERROR(GatherSlices(gathered, longest, operation, deadline));
  for (int r = 0; r < world_size(); ++r) {
    const ElementRange& slice = slices[static_cast<size_t>(r)];
    if (slice.size() == 0) continue;
    LS_RETURN_IF_ERROR(memory_->queue()->Copy(data + slice.begin, gathered + r * longest,
                                              static_cast<size_t>(slice.size()) * sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::ReduceScatter(const void* input, void* output, int64_t count,
                                             DType dtype, ReduceOp op, absl::Time deadline) {
  const size_t part = static_cast<size_t>(count) * SizeOf(dtype);
  const size_t bytes = part * static_cast<size_t>(world_size());
  if (!OnGpu(input)) return control_->ReduceScatter(input, output, count, dtype, op, deadline);
  if (dtype != DType::kFloat32 || op != ReduceOp::kSum) {
    return ThroughHost(input, bytes, output, part, [&](const char* in, char* out) {
      return control_->ReduceScatter(in, out, count, dtype, op, deadline);
    });
  }
  Operation operation = plane_->NewOperation(OpKind::kReduceScatter, count, dtype);
  operation.reduce = op;
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(Announce(operation, deadline));
    std::vector<ElementRange> parts;
    for (int r = 0; r < world_size(); ++r) parts.push_back({r * count, (r + 1) * count});
    LS_RETURN_IF_ERROR(SumOfRanks(static_cast<const float*>(input), parts,
                                  static_cast<float*>(output), operation, deadline));
    return Finish(operation, deadline);
  });
}

absl::Status NcclCommunicator::AllGather(const void* input, void* output, int64_t count,
                                         DType dtype, absl::Time deadline) {
  if (!OnGpu(input)) return control_->AllGather(input, output, count, dtype, deadline);
  const Operation operation = plane_->NewOperation(OpKind::kAllGather, count, dtype);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes) * world_size(), [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(Announce(operation, deadline));
    if (count == 0) return absl::OkStatus();
    if (world_size() == 1) return CopyAndWait(output, input, bytes);
    LS_RETURN_IF_ERROR(Queue(
        [&] {
          return group_->api().all_gather(input, output, static_cast<size_t>(count), TypeOf(dtype),
                                          group_->comm(), stream());
        },
        operation, deadline));
    return Finish(operation, deadline);
  });
}

absl::Status NcclCommunicator::Broadcast(void* data, int64_t count, DType dtype, int root,
                                         absl::Time deadline) {
  if (!OnGpu(data)) return control_->Broadcast(data, count, dtype, root, deadline);
  Operation operation = plane_->NewOperation(OpKind::kBroadcast, count, dtype);
  operation.root = root;
  const auto bytes = static_cast<int64_t>(static_cast<size_t>(count) * SizeOf(dtype));
  return Run(operation, bytes, [&]() -> absl::Status {
    if (root < 0 || root >= world_size()) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": no such rank"));
    }
    LS_RETURN_IF_ERROR(Announce(operation, deadline));
    if (count == 0 || world_size() == 1) return absl::OkStatus();
    LS_RETURN_IF_ERROR(Queue(
        [&] {
          return group_->api().broadcast(data, data, static_cast<size_t>(count), TypeOf(dtype),
                                         root, group_->comm(), stream());
        },
        operation, deadline));
    return Finish(operation, deadline);
  });
}

absl::Status NcclCommunicator::Send(const void* data, int64_t count, DType dtype, int to,
                                    absl::Time deadline) {
  if (!OnGpu(data)) return control_->Send(data, count, dtype, to, deadline);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return ThroughHost(data, bytes, nullptr, 0, [&](const char* in, char*) {
    return control_->Send(in, count, dtype, to, deadline);
  });
}

absl::Status NcclCommunicator::Recv(void* data, int64_t count, DType dtype, int from,
                                    absl::Time deadline) {
  if (!OnGpu(data)) return control_->Recv(data, count, dtype, from, deadline);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return ThroughHost(nullptr, 0, data, bytes, [&](const char*, char* out) {
    return control_->Recv(out, count, dtype, from, deadline);
  });
}

absl::Status NcclCommunicator::ExchangeRanges(float* data, int64_t count,
                                              absl::Span<const RangeTransfer> transfers,
                                              absl::Time deadline) {
  if (!OnGpu(data)) return control_->ExchangeRanges(data, count, transfers, deadline);
  Operation operation = plane_->NewOperation(OpKind::kExchange, count, DType::kFloat32);
  operation.layout = LayoutOf(transfers);
  const auto calls = [&] {
    const NcclApi& api = group_->api();
    NcclResult result = kNcclSuccess;
    for (const RangeTransfer& transfer : transfers) {
      const auto floats = static_cast<size_t>(transfer.end - transfer.begin);
      for (const int to : transfer.to) {
        if (transfer.from == rank()) {
          result =
              api.send(data + transfer.begin, floats, kNcclFloat32, to, group_->comm(), stream());
        } else if (to == rank()) {
          result = api.recv(data + transfer.begin, floats, kNcclFloat32, transfer.from,
                            group_->comm(), stream());
        }
        if (result != kNcclSuccess && result != kNcclInProgress) return result;
      }
    }
    return result;
  };
  return Run(operation, count * 4, [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(Announce(operation, deadline));
    if (world_size() == 1) return absl::OkStatus();
    LS_RETURN_IF_ERROR(Queue(calls, operation, deadline));
    return Finish(operation, deadline);
  });
}

absl::Status NcclCommunicator::Replicate(void* data, int64_t bytes, bool have,
                                         absl::Time deadline) {
  if (!OnGpu(data)) return control_->Replicate(data, bytes, have, deadline);
  const Operation operation = plane_->NewOperation(OpKind::kReplicate, bytes, DType::kUInt8);
  return Run(operation, bytes, [&]() -> absl::Status {
    const char mine = have ? 1 : 0;
    std::vector<char> has(static_cast<size_t>(world_size()));
    LS_RETURN_IF_ERROR(plane_->Announce(operation, &mine, 1, has.data(), deadline));
    std::vector<int> holders, others;
    for (int r = 0; r < world_size(); ++r) {
      (has[static_cast<size_t>(r)] != 0 ? holders : others).push_back(r);
    }
    if (holders.empty()) return absl::InternalError("replicate: no rank has the bytes");
    if (others.empty()) return absl::OkStatus();
    LS_RETURN_IF_ERROR(
        Queue([&] { return ExchangeState(static_cast<char*>(data), bytes, holders, others); },
              operation, deadline));
    return Finish(operation, deadline);
  });
}

NcclResult NcclCommunicator::ExchangeState(char* data, int64_t bytes,
                                           const std::vector<int>& holders,
                                           const std::vector<int>& others) const {
  const NcclApi& api = group_->api();
  for (size_t i = 0; i < holders.size(); ++i) {
    const ElementRange slice =
        SliceOf(bytes, static_cast<int>(holders.size()), static_cast<int>(i));
    if (slice.size() == 0) continue;
    for (const int other : others) {
      NcclResult result = kNcclSuccess;
      if (holders[i] == rank()) {
        result = api.send(data + slice.begin, static_cast<size_t>(slice.size()), kNcclUint8, other,
                          group_->comm(), stream());
      } else if (other == rank()) {
        result = api.recv(data + slice.begin, static_cast<size_t>(slice.size()), kNcclUint8,
                          holders[i], group_->comm(), stream());
      }
      if (result != kNcclSuccess && result != kNcclInProgress) return result;
    }
  }
  return kNcclSuccess;
}

}  // namespace lockstep
