// SPDX-License-Identifier: Apache-2.0
// The collectives on buffers anywhere. Few bytes go with the call, in one exchange. More go in
// blocks: every rank sends its block to one rank of each other host, from where it lies, and that
// rank receives it into the memory that its host shares; then every rank takes what it needs from
// there. So each host receives a byte once.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_communicator.h"
#include "collectives/hosts/stretch_move.h"
#include "collectives/reduce.h"

namespace lockstep {
namespace {

// The most that the ranks of a host send with a call.
constexpr size_t kSmallOfHost = 32 << 10;

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

bool HostsCommunicator::IsSmall(size_t bytes) const {
  return bytes <= ControlPlane::kAnnouncedBytes &&
         bytes * static_cast<size_t>(group_.hosts.most()) <= kSmallOfHost;
}

absl::Status HostsCommunicator::MoveSmall(const Operation& operation, const void* mine,
                                          size_t bytes, Given* given, absl::Time deadline) {
  announced_.resize(std::max<size_t>(bytes * static_cast<size_t>(local_size()), 1));
  LS_RETURN_IF_ERROR(AnnounceHere(operation, mine, bytes, announced_.data(), deadline));
  HostsCall call(&context_, operation, announced_.data(),
                 bytes * static_cast<size_t>(local_size()));
  LS_RETURN_IF_ERROR(Exchange(&call, deadline));
  given->resize(static_cast<size_t>(world_size()));
  for (int r = 0; r < world_size(); ++r) {
    const int host = group_.hosts.host_of(r);
    const std::vector<char>& of_host = IsLocal(r) ? announced_ : call.heard(host);
    if (of_host.size() < bytes * static_cast<size_t>(group_.hosts.size(host))) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": what came with the call of ",
                                              context_.mesh->name(r), " is too short"));
    }
    (*given)[static_cast<size_t>(r)] =
        of_host.data() + bytes * static_cast<size_t>(group_.hosts.index_of(r));
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::EnterLarge(const Operation& operation, absl::Time deadline) {
  LS_RETURN_IF_ERROR(AnnounceHere(operation, nullptr, 0, nullptr, deadline));
  HostsCall call(&context_, operation);
  return Exchange(&call, deadline);
}

absl::Status HostsCommunicator::MoveBlock(const Operation& operation, const GiveOf& give,
                                          const std::function<size_t(int from, int host)>& bytes,
                                          Given* given, absl::Time deadline) {
  const HostGroups& hosts = group_.hosts;
  const int mine = context_.my_host();
  char* const half = group_.area + blocks_ % 2 * (kAreaBytes / 2);
  std::vector<Stretch> sends, receives;
  given->assign(static_cast<size_t>(world_size()), nullptr);
  for (int h = 0; h < hosts.hosts(); ++h) {
    if (bytes(rank(), h) == 0) continue;
    const absl::Span<const char> block = give(h);
    if (h == mine) {
      // Alone on its host, a rank reads its own where it is.
      if (local_size() > 1) Copy(half, block.data(), block.size());
      (*given)[static_cast<size_t>(rank())] = local_size() > 1 ? half : block.data();
      continue;
    }
    sends.push_back({hosts.Receiver(h, rank()), const_cast<char*>(block.data()), block.size(), 0});
  }
  std::vector<size_t> next(static_cast<size_t>(local_size()), 1);  // place in each receiver's half
  for (int r = 0; r < world_size(); ++r) {
    const int index = IsLocal(r) ? hosts.index_of(r) : hosts.index_of(hosts.Receiver(mine, r));
    const auto i = static_cast<size_t>(index);
    const size_t place = IsLocal(r) ? 0 : next[i]++;
    if (bytes(r, mine) == 0) continue;
    if (!IsLocal(r) && index == context_.my_index()) {
      receives.push_back({r, half + place * block_bytes_, bytes(r, mine), 0});
    }
    if ((*given)[static_cast<size_t>(r)] != nullptr) continue;
    (*given)[static_cast<size_t>(r)] =
        group_.areas[i] + (half - group_.area) + static_cast<ptrdiff_t>(place * block_bytes_);
  }
  StretchMove move(&context_, operation, blocks_, std::move(sends), std::move(receives));
  ++blocks_;
  LS_RETURN_IF_ERROR(Exchange(&move, deadline));
  return local_size() > 1 ? Meet(deadline) : absl::OkStatus();
}

// ---- all_reduce ----

absl::Status HostsCommunicator::AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                                          ReduceOrder order, absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kAllReduce, count, dtype);
  operation.reduce = op;
  operation.order = order;
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    if (!IsSmall(bytes)) {
      LS_RETURN_IF_ERROR(EnterLarge(operation, deadline));
      return AllReduceBlocks(static_cast<char*>(data), operation, deadline);
    }
    Given given;
    LS_RETURN_IF_ERROR(MoveSmall(operation, data, bytes, &given, deadline));
    const std::vector<const void*> inputs(given.begin(), given.end());
    ReduceInOrder(inputs, data, count, dtype, op);
    return absl::OkStatus();
  });
}

absl::Status HostsCommunicator::AllReduceBlocks(char* data, const Operation& operation,
                                                absl::Time deadline) {
  const size_t size = SizeOf(operation.dtype);
  const auto block = static_cast<int64_t>(block_bytes_ / size);
  Given given;
  for (int64_t begin = 0; begin < operation.count; begin += block) {
    const int64_t elements = std::min(block, operation.count - begin);
    const size_t bytes = static_cast<size_t>(elements) * size;
    char* const at = data + static_cast<size_t>(begin) * size;
    LS_RETURN_IF_ERROR(MoveBlock(
        operation, [&](int) { return absl::MakeConstSpan(at, bytes); },
        [&](int, int) { return bytes; }, &given, deadline));
    const std::vector<const void*> inputs(given.begin(), given.end());
    ReduceInOrder(inputs, at, elements, operation.dtype, operation.reduce);
  }
  return absl::OkStatus();
}

// ---- reduce_scatter ----

absl::Status HostsCommunicator::ReduceScatter(const void* input, void* output, int64_t count,
                                              DType dtype, ReduceOp op, absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kReduceScatter, count, dtype);
  operation.reduce = op;
  const size_t part = static_cast<size_t>(count) * SizeOf(dtype);
  const size_t bytes = part * static_cast<size_t>(world_size());
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    if (!IsSmall(bytes)) {
      LS_RETURN_IF_ERROR(EnterLarge(operation, deadline));
      return ReduceScatterBlocks(static_cast<const char*>(input), static_cast<char*>(output),
                                 operation, deadline);
    }
    Given given;
    LS_RETURN_IF_ERROR(MoveSmall(operation, input, bytes, &given, deadline));
    std::vector<const void*> inputs;
    for (const char* each : given) inputs.push_back(each + static_cast<size_t>(rank()) * part);
    ReduceInOrder(inputs, output, count, dtype, op);
    return absl::OkStatus();
  });
}

// A block for a host holds the same piece of the part of each of its ranks, or of some of them
// where they are very many.
absl::Status HostsCommunicator::ReduceScatterBlocks(const char* input, char* output,
                                                    const Operation& operation,
                                                    absl::Time deadline) {
  const size_t size = SizeOf(operation.dtype);
  const int most = group_.hosts.most();
  const ScatterBlock fits = FitScatterBlock(static_cast<int64_t>(block_bytes_ / size), most);
  std::vector<std::vector<char>> packed(static_cast<size_t>(group_.hosts.hosts()));
  Given given;
  for (int first = 0; first < most; first += fits.ranks) {
    // The ranks of a host whose turn it is.
    const auto ranks_of = [&](int host) {
      return absl::MakeConstSpan(group_.hosts.ranks[static_cast<size_t>(host)])
          .subspan(static_cast<size_t>(std::min(first, group_.hosts.size(host))),
                   static_cast<size_t>(fits.ranks));
    };
    const int place = context_.my_index() - first;
    for (int64_t begin = 0; begin < operation.count; begin += fits.elements) {
      const int64_t elements = std::min(fits.elements, operation.count - begin);
      const size_t bytes = static_cast<size_t>(elements) * size;
      const auto give = [&](int host) {
        std::vector<char>& block = packed[static_cast<size_t>(host)];
        block.resize(bytes * ranks_of(host).size());
        char* at = block.data();
        for (const int r : ranks_of(host)) {
          Copy(at, input + static_cast<size_t>(r * operation.count + begin) * size, bytes);
          at += bytes;
        }
        return absl::MakeConstSpan(block);
      };
      LS_RETURN_IF_ERROR(MoveBlock(
          operation, give, [&](int, int host) { return bytes * ranks_of(host).size(); }, &given,
          deadline));
      if (place < 0 || place >= fits.ranks) continue;
      std::vector<const void*> inputs;
      for (const char* each : given) inputs.push_back(each + bytes * static_cast<size_t>(place));
      ReduceInOrder(inputs, output + static_cast<size_t>(begin) * size, elements, operation.dtype,
                    operation.reduce);
    }
  }
  return absl::OkStatus();
}

// ---- all_gather ----

absl::Status HostsCommunicator::AllGather(const void* input, void* output, int64_t count,
                                          DType dtype, absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kAllGather, count, dtype);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes) * world_size(), [&]() -> absl::Status {
    if (!IsSmall(bytes)) {
      LS_RETURN_IF_ERROR(EnterLarge(operation, deadline));
      return AllGatherBlocks(static_cast<const char*>(input), static_cast<char*>(output), bytes,
                             operation, deadline);
    }
    Given given;
    LS_RETURN_IF_ERROR(MoveSmall(operation, input, bytes, &given, deadline));
    for (size_t r = 0; r < given.size(); ++r) {
      Copy(static_cast<char*>(output) + r * bytes, given[r], bytes);
    }
    return absl::OkStatus();
  });
}

absl::Status HostsCommunicator::AllGatherBlocks(const char* input, char* output, size_t bytes,
                                                const Operation& operation, absl::Time deadline) {
  Given given;
  for (size_t begin = 0; begin < bytes; begin += block_bytes_) {
    const size_t some = std::min(block_bytes_, bytes - begin);
    LS_RETURN_IF_ERROR(MoveBlock(
        operation, [&](int) { return absl::MakeConstSpan(input + begin, some); },
        [&](int, int) { return some; }, &given, deadline));
    for (size_t r = 0; r < given.size(); ++r) Copy(output + r * bytes + begin, given[r], some);
  }
  return absl::OkStatus();
}

// ---- broadcast ----

absl::Status HostsCommunicator::Broadcast(void* data, int64_t count, DType dtype, int root,
                                          absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kBroadcast, count, dtype);
  operation.root = root;
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    if (root < 0 || root >= world_size()) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": no such rank"));
    }
    if (!IsSmall(bytes)) {
      LS_RETURN_IF_ERROR(EnterLarge(operation, deadline));
      return BroadcastBlocks(static_cast<char*>(data), bytes, operation, deadline);
    }
    Given given;
    LS_RETURN_IF_ERROR(MoveSmall(operation, data, bytes, &given, deadline));
    Copy(data, given[static_cast<size_t>(root)], bytes);
    return absl::OkStatus();
  });
}

absl::Status HostsCommunicator::BroadcastBlocks(char* data, size_t bytes,
                                                const Operation& operation, absl::Time deadline) {
  Given given;
  for (size_t begin = 0; begin < bytes; begin += block_bytes_) {
    const size_t some = std::min(block_bytes_, bytes - begin);
    LS_RETURN_IF_ERROR(MoveBlock(
        operation, [&](int) { return absl::MakeConstSpan(data + begin, some); },
        [&](int from, int) { return from == operation.root ? some : 0; }, &given, deadline));
    Copy(data + begin, given[static_cast<size_t>(operation.root)], some);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
