// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/shm_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group_end.h"
#include "common/check.h"
#include "common/clock.h"

namespace lockstep {
namespace {

std::vector<ShmWaiter::Peer> PeersOf(const ShmGroup& group) {
  std::vector<ShmWaiter::Peer> peers;
  for (int i = 0; i < static_cast<int>(group.members.size()); ++i) {
    if (i == group.rank) continue;
    const GroupMember& member = group.members[static_cast<size_t>(i)];
    peers.push_back({group.peers[static_cast<size_t>(i)]->header(), i, member.rank, member.pid,
                     member.life_slot});
  }
  return peers;
}

// Keeps the last completed call in a word: enough to say where a missing rank was seen last.
uint64_t PackCompleted(const Operation& operation) {
  return static_cast<uint64_t>(operation.kind) << 56 |
         (static_cast<uint64_t>(operation.sequence) & 0xffffffffffffff);
}

std::string DescribeCompleted(uint64_t word) {
  if (word == 0) return "nothing";
  return absl::StrCat(std::string(OpKindName(static_cast<OpKind>(word >> 56))), " ",
                      word & 0xffffffffffffff);
}

int64_t NowNanos() { return absl::ToUnixNanos(Clock::Real()->Now()); }

}  // namespace

ShmCommunicator::ShmCommunicator(ShmGroup group)
    : group_(std::move(group)),
      waiter_(group_.own->header(), group_.generation, PeersOf(group_), group_.life,
              group_.abort.get(), group_.recorder, group_.may_spin),
      own_(group_.own->header()),
      sent_(group_.members.size(), 0),
      received_(group_.members.size(), 0) {
  for (const GroupMember& member : group_.members) shards_ = std::max(shards_, member.shards.end);
}

ShmCommunicator::~ShmCommunicator() {
  if (!finished_.ok() || group_.abort->IsSet()) return;
  own_->left.store(PackStamp(generation(), 1), std::memory_order_release);
  waiter_.Ring();
}

absl::Status ShmCommunicator::Join(absl::Time deadline) {
  const auto world = static_cast<uint64_t>(world_size());
  own_->membership.store(PackStamp(generation(), static_cast<uint64_t>(rank()) << 20 | world),
                         std::memory_order_relaxed);
  own_->left.store(0, std::memory_order_relaxed);
  own_->phase.store(PackStamp(generation(), 0), std::memory_order_release);
  waiter_.Ring();
  LS_RETURN_IF_ERROR(
      WaitForPeers(deadline, [&](const RankHeader& peer) { return Reached(peer, 0); }));
  for (const ShmWaiter::Peer& peer : waiter_.peers()) {
    const uint64_t word = peer.header->membership.load(std::memory_order_acquire);
    if (word == PackStamp(generation(), static_cast<uint64_t>(peer.index) << 20 | world)) continue;
    return absl::InternalError(
        absl::StrCat("generation ", generation(), ": member ", rank(), " takes pid ", peer.pid,
                     " for member ", peer.index, " of ", world, ", but it joined as rank ",
                     StampValue(word) >> 20, " of ", StampValue(word) & 0xfffff));
  }
  return absl::OkStatus();
}

Operation ShmCommunicator::NewOperation(OpKind kind, int64_t count, DType dtype) const {
  return {.kind = kind,
          .dtype = dtype,
          .generation = generation(),
          .sequence = sequence_ + 1,
          .count = count};
}

absl::Status ShmCommunicator::BeginCall(const Operation& operation, int64_t bytes) {
  if (finished_.ok() && group_.abort->IsSet()) finished_ = group_.abort->status();
  if (finished_.ok() && operation.count < 0) {
    finished_ = absl::InternalError(absl::StrCat(ToString(operation), ": negative count"));
  }
  LS_RETURN_IF_ERROR(finished_);
  group_.recorder->Begin(operation, bytes);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::EndCall(const Operation& operation, absl::Status status) {
  group_.recorder->End(status.code());
  if (status.ok()) {
    own_->completed.store(PackCompleted(operation), std::memory_order_release);
  } else {
    finished_ = status;
  }
  return status;
}

CallSlot ShmCommunicator::NewCall(const Operation& operation, const void* buffer,
                                  size_t bytes) const {
  CallSlot call;
  call.operation = operation;
  if (buffer != nullptr) call.buffer = group_.own->OffsetOf(buffer, bytes);
  return call;
}

absl::Status ShmCommunicator::Enter(const CallSlot& call, absl::Time deadline) {
  ++sequence_;
  CallSlot& slot = own_->calls[(tick_ + 1) % kPlaces];
  slot.operation = call.operation;
  slot.buffer = call.buffer;
  slot.owned = call.owned;
  slot.node_count = call.node_count;
  std::copy(call.nodes, call.nodes + call.node_count, slot.nodes);
  enter_tick_ = tick_ + 1;
  LS_RETURN_IF_ERROR(Tick(deadline));
  if (starts_itself_) group_.recorder->Started();
  for (int r = 1; r < world_size(); ++r) {
    if (CallOf(r).operation == CallOf(0).operation) continue;
    std::vector<int> names;
    for (const GroupMember& member : group_.members) names.push_back(member.rank);
    return CheckSameCall(AnnouncedCalls(), names);
  }
  return absl::OkStatus();
}

std::vector<Operation> ShmCommunicator::AnnouncedCalls() const {
  std::vector<Operation> calls(static_cast<size_t>(world_size()));
  for (int i = 0; i < world_size(); ++i) calls[static_cast<size_t>(i)] = CallOf(i).operation;
  return calls;
}

bool ShmCommunicator::AllReached(uint64_t tick) const {
  const auto& peers = waiter_.peers();
  return tick_ >= tick && std::all_of(peers.begin(), peers.end(), [&](const auto& peer) {
           return Reached(*peer.header, tick);
         });
}

absl::Status ShmCommunicator::Tick(absl::Time deadline) {
  ++tick_;
  own_->phase.store(PackStamp(generation(), tick_), std::memory_order_release);
  waiter_.Ring();
  return WaitForPeers(deadline, [this](const RankHeader& peer) { return Reached(peer, tick_); });
}

bool ShmCommunicator::Reached(const RankHeader& peer, uint64_t tick) const {
  const uint64_t phase = peer.phase.load(std::memory_order_acquire);
  return StampGeneration(phase) == generation() && StampValue(phase) >= tick;
}

bool ShmCommunicator::HasLeft(const RankHeader& peer) const {
  return StampGeneration(peer.phase.load(std::memory_order_acquire)) > generation() ||
         peer.left.load(std::memory_order_acquire) == PackStamp(generation(), 1);
}

absl::Status ShmCommunicator::LeftError(int rank) const {
  return WithEnd(absl::AbortedError(
                     absl::StrCat("rank ", NameOf(rank), " has left generation ", generation())),
                 {EndCause::kPeerLeft, NameOf(rank)});
}

absl::Status ShmCommunicator::MissingError(const std::vector<int>& ranks) const {
  const auto record = group_.recorder->Latest();
  std::vector<std::string> details;
  for (const int rank : ranks) {
    details.push_back(absl::StrCat(
        "rank ", NameOf(rank), " (pid ", group_.members[rank].pid, ", last completed ",
        DescribeCompleted(header(rank).completed.load(std::memory_order_acquire)), ")"));
  }
  return WithEnd(absl::DeadlineExceededError(absl::StrCat(
                     record.has_value() ? ToString(record->operation) : "", " on rank ",
                     NameOf(group_.rank), ": waited in vain for ", absl::StrJoin(details, ", "))),
                 {EndCause::kPeerMissing, ranks.empty() ? -1 : NameOf(ranks.front())});
}

const RankHeader& ShmCommunicator::header(int rank) const {
  return rank == group_.rank ? *own_ : *group_.peers[rank]->header();
}

const char* ShmCommunicator::base(int rank) const {
  return rank == group_.rank ? group_.own->base() : group_.peers[rank]->base();
}

size_t ShmCommunicator::arena_bytes(int rank) const {
  return rank == group_.rank ? group_.own->bytes() : group_.peers[rank]->bytes();
}

const CallSlot& ShmCommunicator::CallOf(int rank) const {
  return header(rank).calls[enter_tick_ % kPlaces];
}

char* ShmCommunicator::NextChunk() const {
  return group_.own->base() + kChunksOffset + (tick_ + 1) % kPlaces * kChunkBytes;
}

char* ShmCommunicator::OwnChunk() const {
  return group_.own->base() + kChunksOffset + tick_ % kPlaces * kChunkBytes;
}

const char* ShmCommunicator::Chunk(int rank, uint64_t back) const {
  return base(rank) + kChunksOffset + (tick_ - back) % kPlaces * kChunkBytes;
}

absl::StatusOr<bool> ShmCommunicator::AllInArenas(size_t bytes) const {
  for (int r = 0; r < world_size(); ++r) {
    const uint64_t offset = CallOf(r).buffer;
    if (offset == CallSlot::kForeign) return false;
    if (offset > arena_bytes(r) || bytes > arena_bytes(r) - offset) {
      return absl::InternalError(absl::StrCat("rank ", r, " announced a buffer outside its arena"));
    }
  }
  return true;
}

absl::Status ShmCommunicator::Barrier(absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kBarrier, 0, DType::kUInt8);
  return Run(operation, 0, [&] { return Enter(NewCall(operation, nullptr, 0), deadline); });
}

void ShmCommunicator::PublishCommitted(int64_t step) {
  LS_CHECK(step >= -1 && step < int64_t{1} << 39) << step;
  own_->committed.store(PackStamp(generation(), static_cast<uint64_t>(step + 1)),
                        std::memory_order_release);
  waiter_.Ring();
}

absl::Status ShmCommunicator::WaitCommitted(int64_t step, absl::Time deadline) {
  const auto there = [&](const RankHeader& peer) {
    const uint64_t word = peer.committed.load(std::memory_order_acquire);
    return StampGeneration(word) == generation() &&
           static_cast<int64_t>(StampValue(word)) >= step + 1;
  };
  Operation operation = NewOperation(OpKind::kWaitCommitted, 0, DType::kUInt8);
  operation.sequence = step;
  operation.step = step;
  return Run(operation, 0, [&]() -> absl::Status {
    if (!there(*own_)) {
      return absl::InternalError(absl::StrCat("rank ", rank(), " waits for commit ", step,
                                              " which it has not published itself"));
    }
    return WaitForPeers(deadline, there);
  });
}

std::vector<int64_t> ShmCommunicator::CommittedSteps() const {
  std::vector<int64_t> steps(world_size(), -1);
  for (int r = 0; r < world_size(); ++r) {
    const uint64_t word = header(r).committed.load(std::memory_order_acquire);
    // A later generation's word tells at least as much: its rank had to finish this one's steps
    // first.
    if (StampGeneration(word) >= generation())
      steps[r] = static_cast<int64_t>(StampValue(word)) - 1;
  }
  return steps;
}

void ShmCommunicator::ReleaseDead() {
  if (group_.life == nullptr) return;
  const uint64_t committed = own_->committed.load(std::memory_order_relaxed);
  for (size_t i = 0; i < group_.members.size(); ++i) {
    const GroupMember& member = group_.members[i];
    if (static_cast<int>(i) == rank() || member.life_slot < 0 ||
        group_.life->Get(member.life_slot) != LifePage::State::kDead) {
      continue;
    }
    PeerArena& arena = *group_.peers[i];
    // The laggard rule: a rank that did its part of a reduction and has not committed its step may
    // have to finish it, if anybody has. That needs the slice of a peer which did its part too; one
    // that died before kept everybody from committing, and the step is done again. Of one that has
    // come to a later generation since that is not known any more.
    std::vector<PeerArena::Range> kept;
    const bool done = StampGeneration(committed) >= generation() && newest_.has_value() &&
                      static_cast<int64_t>(StampValue(committed)) - 1 >= newest_->step;
    const uint64_t phase = arena.header()->phase.load(std::memory_order_acquire);
    const bool later = StampGeneration(phase) > generation();
    if (newest_.has_value() && !done && (later || Reached(*arena.header(), newest_tick_))) {
      const Slice& slice = newest_->slices[i];
      kept.push_back({slice.data, static_cast<size_t>(slice.end - slice.begin) * sizeof(float)});
    }
    arena.Release(kept);
  }
}

std::string ShmCommunicator::DescribeState() const {
  const auto record = group_.recorder->Latest();
  if (!record.has_value()) return "no operation yet";
  return ToString(*record, NowNanos());
}

}  // namespace lockstep
