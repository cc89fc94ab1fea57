// SPDX-License-Identifier: Apache-2.0
// Replicate: a host on which somebody has the bytes shares them in its memory; to every other host
// each holder sends its slice once, into the memory of one rank, and the ranks there share them.
// ExchangeRanges goes the same way.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_communicator.h"
#include "collectives/hosts/stretch_move.h"

namespace lockstep {
namespace {

// Who has the bytes, of some ranks.
template <typename Ranks, typename Has>
std::vector<int> HoldersIn(const Ranks& ranks, Has has) {
  std::vector<int> holders;
  for (const int rank : ranks) {
    if (has(rank)) holders.push_back(rank);
  }
  return holders;
}

}  // namespace

absl::Status HostsCommunicator::Replicate(void* data, int64_t bytes, bool have,
                                          absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kReplicate, bytes, DType::kUInt8);
  return Run(operation, bytes, [&]() -> absl::Status {
    if (!group_.transport->Holds(data, static_cast<size_t>(bytes))) {
      return absl::InternalError(
          absl::StrCat("rank ", rank(), ": what is to be copied does not lie in the arena"));
    }
    const Holding mine{have ? 1 : 0, static_cast<char*>(data) - group_.area};
    Given given;
    LS_RETURN_IF_ERROR(MoveSmall(operation, &mine, sizeof(mine), &given, deadline));
    std::vector<Holding> all(given.size());
    for (size_t r = 0; r < given.size(); ++r) std::memcpy(&all[r], given[r], sizeof(Holding));
    return CopyFromHolders(static_cast<char*>(data), bytes, all, operation, deadline);
  });
}

const char* HostsCommunicator::LocalPlace(int index, const std::vector<Holding>& all) const {
  const int rank = group_.hosts.At(context_.my_host(), index);
  return group_.areas[static_cast<size_t>(index)] + all[static_cast<size_t>(rank)].place;
}

absl::Status HostsCommunicator::CopyFromHolders(char* data, int64_t bytes,
                                                const std::vector<Holding>& all,
                                                const Operation& operation, absl::Time deadline) {
  const HostGroups& hosts = group_.hosts;
  const auto has = [&](int rank) { return all[static_cast<size_t>(rank)].have != 0; };
  std::vector<int> every;
  for (int r = 0; r < world_size(); ++r) every.push_back(r);
  const std::vector<int> holders = HoldersIn(every, has);
  if (holders.empty()) return absl::InternalError("replicate: no rank has the bytes");
  const auto needy = [&](int h) {
    return HoldersIn(hosts.ranks[static_cast<size_t>(h)], has).empty();
  };
  const bool needs = needy(context_.my_host());
  // Slices between hosts.
  std::vector<Stretch> sends, receives;
  for (size_t i = 0; i < holders.size(); ++i) {
    const int from = holders[i];
    const ElementRange slice =
        SliceOf(bytes, static_cast<int>(holders.size()), static_cast<int>(i));
    const auto size = static_cast<size_t>(slice.size());
    for (int h = 0; from == rank() && h < hosts.hosts(); ++h) {
      if (needy(h)) sends.push_back({hosts.Receiver(h, from), data + slice.begin, size, 0});
    }
    if (needs && hosts.Receiver(context_.my_host(), from) == rank()) {
      receives.push_back({from, data + slice.begin, size, 0});
    }
  }
  StretchMove move(&context_, operation, 0, std::move(sends), std::move(receives));
  LS_RETURN_IF_ERROR(Exchange(&move, deadline));
  if (local_size() == 1) return absl::OkStatus();
  // What a rank of this host has or has received goes to those that have not.
  LS_RETURN_IF_ERROR(Meet(deadline));
  const std::vector<int> near =
      HoldersIn(hosts.ranks[static_cast<size_t>(context_.my_host())], has);
  const std::vector<int>& givers = needs ? holders : near;
  for (size_t i = 0; !has(rank()) && i < givers.size(); ++i) {
    const int from = needs ? hosts.Receiver(context_.my_host(), givers[i]) : givers[i];
    if (from == rank()) continue;
    const ElementRange slice = SliceOf(bytes, static_cast<int>(givers.size()), static_cast<int>(i));
    if (slice.size() == 0) continue;
    group_.local->CopyInPieces(LocalPlace(hosts.index_of(from), all) + slice.begin,
                               data + slice.begin, static_cast<size_t>(slice.size()));
  }
  return Meet(deadline);  // nobody changes them while others read
}

absl::Status HostsCommunicator::ExchangeRanges(float* data, int64_t count,
                                               absl::Span<const RangeTransfer> transfers,
                                               absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kExchange, count, DType::kFloat32);
  operation.layout = LayoutOf(transfers);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  int64_t moved = 0;
  for (const RangeTransfer& transfer : transfers) {
    const bool sends = transfer.from == rank() && !transfer.to.empty();
    if (sends || absl::c_linear_search(transfer.to, rank())) moved += transfer.end - transfer.begin;
  }
  return Run(operation, moved * static_cast<int64_t>(sizeof(float)), [&]() -> absl::Status {
    if (count > 0 && !group_.transport->Holds(data, bytes)) {
      return absl::InternalError(
          absl::StrCat("rank ", rank(), ": the vector does not lie in the arena"));
    }
    char* const own = reinterpret_cast<char*>(data);
    const int64_t place = own - group_.area;
    std::vector<int64_t> places(static_cast<size_t>(local_size()));
    LS_RETURN_IF_ERROR(AnnounceHere(operation, &place, sizeof(place), places.data(), deadline));
    HostsCall call(&context_, operation);
    LS_RETURN_IF_ERROR(Exchange(&call, deadline));
    return MoveRanges(own, transfers, places, operation, deadline);
  });
}

absl::Status HostsCommunicator::MoveRanges(char* data, absl::Span<const RangeTransfer> transfers,
                                           const std::vector<int64_t>& places,
                                           const Operation& operation, absl::Time deadline) {
  const HostGroups& hosts = group_.hosts;
  const int mine = context_.my_host();
  std::vector<Stretch> sends, receives;
  // Who gives each transfer to the receivers on this host, in its memory.
  std::vector<int> givers;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const RangeTransfer& transfer = transfers[i];
    const auto begin = static_cast<size_t>(transfer.begin) * sizeof(float);
    const auto size = static_cast<size_t>(transfer.end - transfer.begin) * sizeof(float);
    givers.push_back(transfer.from);
    for (int h = 0; h < hosts.hosts(); ++h) {
      if (h == hosts.host_of(transfer.from)) continue;
      const std::vector<int> takers = HoldersIn(hosts.ranks[static_cast<size_t>(h)], [&](int r) {
        return absl::c_linear_search(transfer.to, r);
      });
      if (takers.empty()) continue;
      const int first = takers[i % takers.size()];  // they take turns
      if (transfer.from == rank()) sends.push_back({first, data + begin, size, 0});
      if (first == rank()) receives.push_back({transfer.from, data + begin, size, 0});
      if (h == mine) givers.back() = first;
    }
  }
  StretchMove move(&context_, operation, 0, std::move(sends), std::move(receives));
  LS_RETURN_IF_ERROR(Exchange(&move, deadline));
  if (local_size() == 1) return absl::OkStatus();
  LS_RETURN_IF_ERROR(Meet(deadline));
  for (size_t i = 0; i < transfers.size(); ++i) {
    const RangeTransfer& transfer = transfers[i];
    if (givers[i] == rank() || !absl::c_linear_search(transfer.to, rank())) continue;
    const auto index = static_cast<size_t>(hosts.index_of(givers[i]));
    const auto begin = static_cast<size_t>(transfer.begin) * sizeof(float);
    group_.local->CopyInPieces(group_.areas[index] + places[index] + begin, data + begin,
                               static_cast<size_t>(transfer.end - transfer.begin) * sizeof(float));
  }
  return Meet(deadline);  // as above
}

}  // namespace lockstep
