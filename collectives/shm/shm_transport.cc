// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "collectives/shm/shm_communicator.h"
#include "common/available_cpus.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

std::string Name(const GroupMember& member) {
  return absl::StrCat("rank ", member.rank, " (pid ", member.pid, ")");
}

// Which member this rank is; -1: none.
int IndexOf(const GroupSpec& spec) {
  for (size_t i = 0; i < spec.members.size(); ++i) {
    if (spec.members[i].rank == spec.rank) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Create(const Options& options) {
  auto transport = std::unique_ptr<ShmTransport>(new ShmTransport(options));
  ArenaOptions arena;
  arena.patience = options.memory_patience;
  if (options.life != nullptr) arena.turns = options.life->fd();
  LS_ASSIGN_OR_RETURN(transport->arena_,
                      OwnArena::Create(options.arena_bytes, options.reserved_bytes, arena));
  LS_ASSIGN_OR_RETURN(transport->server_, ArenaServer::Start(transport->arena_->fd()));
  return transport;
}

ShmTransport::~ShmTransport() = default;

absl::StatusOr<void*> ShmTransport::Allocate(size_t bytes, const std::string& what) {
  return arena_->Allocate(bytes, what);
}

absl::StatusOr<void*> ShmTransport::ReservePages(size_t bytes, const std::string& what) {
  return arena_->ReservePages(bytes, what);
}

absl::Status ShmTransport::CommitPages(void* data, size_t bytes, const std::string& what) {
  return arena_->CommitPages(data, bytes, what);
}

void ShmTransport::AbortConnect(int64_t generation, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (generation > aborted_generation_) {
    aborted_generation_ = generation;
    abort_reason_ = reason;
  }
  if (connecting_ != nullptr && connecting_generation_ <= generation) connecting_->Set(reason);
}

std::shared_ptr<AbortFlag> ShmTransport::BeginConnect(int64_t generation) {
  auto flag = std::make_shared<AbortFlag>();
  absl::MutexLock lock(&mu_);
  if (generation <= aborted_generation_) flag->Set(abort_reason_);
  connecting_ = flag;
  connecting_generation_ = generation;
  return flag;
}

absl::Status ShmTransport::CheckMembers(const GroupSpec& spec) {
  const int world = static_cast<int>(spec.members.size());
  if (IndexOf(spec) < 0 || spec.generation < 0 || spec.generation >= 1 << 24) {
    return absl::InternalError(absl::StrCat("generation ", spec.generation, " of ", world,
                                            " members has no rank ", spec.rank));
  }
  const GroupMember& self = spec.members[static_cast<size_t>(IndexOf(spec))];
  for (const GroupMember& member : spec.members) {
    if (member.node == self.node || member.node.empty() || self.node.empty()) continue;
    return NoAddress(self, member, member.rank);
  }
  if (world > kMaxRanksOfHost) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "generation ", spec.generation, " has ", world, " ranks on one host, and at most ",
        kMaxRanksOfHost, " share their memory: fewer of them have to be on it"));
  }
  for (int i = 1; i < world; ++i) {
    if (spec.members[i].rank <= spec.members[i - 1].rank) {
      return absl::InternalError(absl::StrCat("member ", i, " of generation ", spec.generation,
                                              " has rank ", spec.members[i].rank));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PeerArena>> ShmTransport::Reach(const GroupMember& member,
                                                               const AbortFlag& abort,
                                                               absl::Time deadline) {
  auto& known = peers_[member.shm_address];
  absl::Status last = absl::UnavailableError("not tried");
  while (known == nullptr) {
    if (abort.IsSet()) return abort.status();
    if (options_.life != nullptr && member.life_slot >= 0 &&
        options_.life->Get(member.life_slot) == LifePage::State::kDead) {
      return WithEnd(absl::AbortedError(absl::StrCat(Name(member), " died")),
                     {EndCause::kPeerDied, member.rank});
    }
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) {
      return WithEnd(
          absl::DeadlineExceededError(absl::StrCat(Name(member), " is missing: ", last.message())),
          {EndCause::kPeerMissing, member.rank});
    }
    absl::StatusOr<UniqueFd> fd =
        FetchArena(member.shm_address, member.key, std::min(left, absl::Milliseconds(100)));
    if (fd.ok()) {
      absl::StatusOr<std::shared_ptr<PeerArena>> arena = PeerArena::Map(std::move(*fd));
      if (!arena.ok()) return Annotate(arena.status(), Name(member));
      known = *std::move(arena);
    } else if (!absl::IsUnavailable(fd.status())) {
      return Annotate(fd.status(), Name(member));
    } else {
      last = fd.status();
      // Nobody listens there (yet): look again soon, or at once when aborted.
      const FutexWord word{abort.word(), 0};
      FutexWaitAny(absl::MakeConstSpan(&word, 1), std::min(left, absl::Milliseconds(1)));
    }
  }
  return known;
}

absl::StatusOr<std::unique_ptr<Communicator>> ShmTransport::Connect(const GroupSpec& spec,
                                                                    absl::Time deadline) {
  Operation operation;
  operation.kind = OpKind::kConnect;
  operation.generation = spec.generation;
  recorder_.Begin(operation, 0);
  auto result = ConnectRecorded(spec, deadline);
  recorder_.End(result.status().code());
  absl::MutexLock lock(&mu_);
  connecting_ = nullptr;
  return result;
}

absl::StatusOr<std::unique_ptr<Communicator>> ShmTransport::ConnectRecorded(const GroupSpec& spec,
                                                                            absl::Time deadline) {
  LS_RETURN_IF_ERROR(CheckMembers(spec));
  const std::vector<GroupMember>& members = spec.members;
  const std::shared_ptr<AbortFlag> abort = BeginConnect(spec.generation);
  // Arenas of those who are no members any more go; old communicators keep theirs while they live.
  for (auto it = peers_.begin(); it != peers_.end();) {
    const bool member = std::any_of(members.begin(), members.end(), [&](const GroupMember& m) {
      return m.shm_address == it->first;
    });
    it = member ? std::next(it) : peers_.erase(it);
  }
  ShmGroup group;
  group.generation = spec.generation;
  group.rank = IndexOf(spec);
  group.members = members;
  group.own = arena_.get();
  group.life = options_.life;
  group.recorder = &recorder_;
  group.abort = abort;
  const int ranks = std::max<int>(options_.local_ranks, static_cast<int>(members.size()));
  group.may_spin = ranks <= AvailableCpus();
  for (const GroupMember& member : members) {
    std::shared_ptr<PeerArena> arena;
    if (member.rank != spec.rank) {
      recorder_.Waiting(member.rank);
      LS_ASSIGN_OR_RETURN(arena, Reach(member, *abort, deadline));
    }
    group.peers.push_back(std::move(arena));
  }
  auto communicator = std::make_unique<ShmCommunicator>(std::move(group));
  LS_RETURN_IF_ERROR(communicator->Join(deadline));
  return communicator;
}

}  // namespace lockstep
