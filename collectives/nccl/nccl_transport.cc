// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/control_plane.h"
#include "collectives/nccl/nccl_communicator.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep {
namespace {

template <size_t N>
void SetText(const std::string& from, char (&to)[N]) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

// What rank 0 gives the others: an id, or why it has none. Plain data: it travels as bytes.
struct IdOffer {
  NcclUniqueId id{};
  int32_t code = 0;  // absl::StatusCode
  char reason[508] = {};
};

const char* Word(NcclJoin::Way way) {
  if (way == NcclJoin::Way::kShrink) return "shrunk";
  return way == NcclJoin::Way::kGrow ? "grown" : "new";
}

}  // namespace

NcclTransport::NcclTransport(Options options)
    : library_(options.library),
      queue_(std::move(options.queue)),
      control_(std::move(options.control)),
      config_(options.config),
      net_name_(std::move(options.net_name)),
      fastest_(options.fastest),
      may_share_gpu_(options.may_share_gpu),
      windows_(options.windows),
      piece_(options.piece),
      try_held_for_(options.try_held_for),
      stall_after_(options.stall_after),
      end_within_(options.end_within),
      memory_(library_, queue_.get(), options.staging) {
  LS_CHECK(queue_ != nullptr && control_ != nullptr);
}

NcclTransport::~NcclTransport() { held_.group.reset(); }

void NcclTransport::AbortConnect(int64_t generation, const std::string& reason) {
  control_->AbortConnect(generation, reason);
  absl::MutexLock lock(&mu_);
  if (generation > aborted_generation_) {
    aborted_generation_ = generation;
    abort_reason_ = reason;
  }
  if (connecting_ != nullptr && connecting_->generation() <= generation) {
    connecting_->Abort(reason);
  }
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclTransport::Connect(const GroupSpec& spec,
                                                                     absl::Time deadline) {
  LS_RETURN_IF_ERROR(queue_->Mark());  // it may not have come back from the last one
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control, control_->Connect(spec, deadline));
  if (control->control_plane() == nullptr) {
    return absl::InternalError("the transport below NCCL cannot announce calls");
  }
  {
    absl::MutexLock lock(&mu_);
    connecting_ = control.get();
    if (spec.generation <= aborted_generation_) connecting_->Abort(abort_reason_);
  }
  // The mutex keeps an abort from a communicator that is gone.
  struct Left {
    NcclTransport* transport;
    ~Left() {
      absl::MutexLock lock(&transport->mu_);
      transport->connecting_ = nullptr;
    }
  } left{this};
  NcclMembership membership;
  membership.memory = &memory_;
  membership.fastest = fastest_;
  membership.piece = piece_;
  membership.on_stall = [this] { stall_report_.Begin(); };
  membership.stall_after = stall_after_;
  membership.give_back = [this](int64_t of, std::unique_ptr<NcclGroup> group) {
    held_ = {of, std::move(group)};
  };
  for (const GroupMember& member : spec.members) {
    membership.shards = std::max(membership.shards, member.shards.end);
  }
  if (spec.members.size() > 1) {
    LS_ASSIGN_OR_RETURN(
        membership.group,
        ConnectNccl(control.get(), spec.members[static_cast<size_t>(spec.rank)], deadline));
  }
  // Whoever is there may leave at once: nobody looks after the others in what they still wait for.
  LS_RETURN_IF_ERROR(control->Barrier(deadline));
  control->control_plane()->RestartNumbering();
  membership.control = std::move(control);
  return std::make_unique<NcclCommunicator>(std::move(membership));
}

NcclHello NcclTransport::Hello(const GroupMember& me) const {
  NcclHello hello;
  hello.version = library_ == nullptr ? 0 : library_->version;
  if (library_ != nullptr) {
    hello.can_shrink = library_->api.shrink != nullptr;
    hello.can_grow = library_->api.grow != nullptr;
    hello.windows = windows_ && library_->api.window_register != nullptr;
  }
  hello.may_share_gpu = may_share_gpu_;
  SetText(queue_->uuid(), hello.gpu);
  SetText(me.host, hello.host);
  if (held_.group != nullptr && !held_.group->busy()) {
    hello.held_generation = held_.generation;
    hello.held_rank = held_.group->rank();
    hello.held_world = held_.group->world();
    hello.held_whole = held_.group->whole();
  }
  hello.vectors = static_cast<int64_t>(memory_.vectors().size());
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a over the sizes
  for (const NcclMemory::Vector& vector : memory_.vectors()) {
    hash = (hash ^ vector.bytes) * 1099511628211ULL;
    hello.windows &= vector.of_nccl;
  }
  hello.vector_sizes = hash;
  return hello;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclTransport::ConnectNccl(Communicator* control,
                                                                      const GroupMember& me,
                                                                      absl::Time deadline) {
  const NcclHello hello = Hello(me);
  std::vector<NcclHello> hellos(static_cast<size_t>(control->world_size()));
  LS_RETURN_IF_ERROR(
      control->AllGather(&hello, hellos.data(), sizeof(hello), DType::kUInt8, deadline));
  LS_ASSIGN_OR_RETURN(const NcclJoin join, PlanNcclJoin(hellos));
  NcclWait wait;
  wait.deadline = deadline;
  // NCCL does not tell how far it is, and `deadline` ends it.
  wait.alive = [plane = control->control_plane()] {
    plane->recorder()->Moved();
    return plane->CheckAlive();
  };
  wait.on_stall = [this] { stall_report_.Begin(); };
  wait.stall_after = stall_after_;
  wait.end_within = end_within_;
  LS_ASSIGN_OR_RETURN(std::unique_ptr<NcclGroup> group, Join(control, join, wait));
  held_ = {};
  if (join.windows) LS_RETURN_IF_ERROR(RegisterVectors(group.get(), wait));
  if (control->rank() == 0) {
    LS_LOG_INFO << "gradients are reduced by " << library_->name() << " on " << group->world()
                << " GPUs (" << Word(last_way_) << " communicator"
                << (join.windows ? ", symmetric memory" : "") << ")";
  }
  return group;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclTransport::Join(Communicator* control,
                                                               const NcclJoin& join,
                                                               const NcclWait& wait) {
  if (join.way != NcclJoin::Way::kNew) {
    // Who fails here drags all others into the other way with it, unless the generation is over.
    absl::StatusOr<std::unique_ptr<NcclGroup>> group = JoinByHeld(control, join, wait);
    if (!group.ok() && !wait.alive().ok()) return wait.alive();
    const char mine = group.ok() ? 1 : 0;
    std::vector<char> good(static_cast<size_t>(control->world_size()));
    LS_RETURN_IF_ERROR(control->AllGather(&mine, good.data(), 1, DType::kUInt8, wait.deadline));
    last_way_ = join.way;
    if (std::find(good.begin(), good.end(), 0) == good.end()) return group;
    if (!group.ok()) {
      LS_LOG_WARNING << group.status().message() << "; a new communicator is made";
    }
  }
  held_ = {};
  LS_RETURN_IF_ERROR(queue_->Mark());  // it may not have come back from that
  last_way_ = NcclJoin::Way::kNew;
  const auto make = [this]() -> absl::StatusOr<NcclUniqueId> {
    NcclUniqueId id{};
    LS_RETURN_IF_ERROR(
        NcclStatus(library_->api, nullptr, library_->api.get_unique_id(&id), "ncclGetUniqueId"));
    return id;
  };
  LS_ASSIGN_OR_RETURN(const NcclUniqueId id, ShareId(control, make, wait));
  return NcclGroup::Create(library_, queue_.get(), control->world_size(), control->rank(), id,
                           Config(), wait);
}

absl::StatusOr<NcclUniqueId> NcclTransport::ShareId(
    Communicator* control, const std::function<absl::StatusOr<NcclUniqueId>()>& make,
    const NcclWait& wait) {
  IdOffer offer;
  if (control->rank() == 0) {
    const absl::StatusOr<NcclUniqueId> made = make();
    if (made.ok()) offer.id = *made;
    offer.code = static_cast<int32_t>(made.status().raw_code());
    SetText(std::string(made.status().message()), offer.reason);
  }
  LS_RETURN_IF_ERROR(control->Broadcast(&offer, sizeof(offer), DType::kUInt8, 0, wait.deadline));
  const auto code = static_cast<absl::StatusCode>(offer.code);
  if (code == absl::StatusCode::kOk) return offer.id;
  return absl::Status(code,
                      absl::StrCat("rank 0 has no id for NCCL's communicator: ", offer.reason));
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclTransport::JoinByHeld(Communicator* control,
                                                                     const NcclJoin& join,
                                                                     const NcclWait& wait) {
  // Of each of NCCL's own: whoever gives one up still meets the others, for whom it may have taken
  // longer.
  const auto brief = [&] {
    NcclWait shorter = wait;
    shorter.deadline = std::min(wait.deadline, Clock::Real()->Now() + try_held_for_);
    return shorter;
  };
  const int world = control->world_size(), rank = control->rank();
  if (join.way == NcclJoin::Way::kShrink) {
    return NcclGroup::Shrink(held_.group.get(), join.excluded, world, rank, Config(), brief());
  }
  const auto make = [&] { return held_.group->GrowId(brief()); };
  LS_ASSIGN_OR_RETURN(const NcclUniqueId id, ShareId(control, make, wait));
  NcclGroup* const old = rank < join.old_world ? held_.group.get() : nullptr;
  return NcclGroup::Grow(library_, queue_.get(), old, world, rank, id, Config(), brief());
}

NcclConfig NcclTransport::Config() const {
  NcclConfig config = config_;
  if (!net_name_.empty()) config.net_name = net_name_.c_str();
  config.comm_name = "lockstep";
  return config;
}

absl::Status NcclTransport::RegisterVectors(NcclGroup* group, const NcclWait& wait) const {
  for (const NcclMemory::Vector& vector : memory_.vectors()) {
    LS_RETURN_IF_ERROR(group->Register(vector.memory, vector.bytes, wait));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
