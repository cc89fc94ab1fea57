// SPDX-License-Identifier: Apache-2.0
#include "worker/survivors.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/control/membership.h"
#include "worker/control/run_dir.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kNumbers = 1024;  // the coordinator gives fewer while a worker connects

// Hosts give their coordinator up at times that differ.
constexpr absl::Duration kPatience = absl::Seconds(15);

}  // namespace

void Survivors::NoteGeneration(const Generation& generation) {
  last_ = generation;
  lost_node_.clear();
}

void Survivors::NoteLost(const GroupSpec& group, const GroupEnd& end) {
  if (end.lost_rank() < 0) return;
  lost_node_ = group.members[static_cast<size_t>(end.lost_rank())].node;
}

absl::StatusOr<std::string> Survivors::SaveTogether(const Parts& parts) {
  if (!last_.has_value()) return absl::FailedPreconditionError("no step was made");
  // A number that was given up in Connect is of no use any more, and not all have heard of it: all
  // of them come to the same one beyond it.
  const int64_t newest = std::max<int64_t>(last_->generation(), parts.newest_generation);
  int64_t number = (newest / kNumbers + 1) * kNumbers - 1;
  absl::StatusOr<std::string> saved;
  for (const bool near : {false, true}) {
    const Generation left = SurvivorsOf(*last_, ++number, [&](const Member& member) {
      const std::string& node = member.address().node_id();
      if (node != parts.bootstrap->node_id()) return !near && node != lost_node_;
      return parts.life->Get(member.address().life_slot()) != LifePage::State::kDead;
    });
    saved = SaveIn(parts, left);
    // Without its state there is nothing more that this worker could give.
    if (saved.ok() || parts.trainer->committed_step() == 0) return saved;
    LS_LOG_WARNING << "not saved by the " << left.members_size()
                   << " workers that are left: " << saved.status().message();
    // What it has gone back to may be whole, and others may have saved theirs.
    absl::StatusOr<std::string> alone = parts.trainer->SaveAlone();
    if (!absl::IsNotFound(alone.status())) return alone;
  }
  return saved;
}

absl::StatusOr<std::string> Survivors::SaveIn(const Parts& parts, const Generation& left) {
  const GroupSpec group = GroupOf(left, *parts.bootstrap);
  SetLogPrefix(absl::StrCat("r", group.rank, " g", group.generation));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                      parts.transport->Connect(group, parts.clock->Now() + kPatience));
  int64_t start_step = parts.trainer->begun_step();
  LS_RETURN_IF_ERROR(communicator->AllReduce(&start_step, 1, DType::kInt64, ReduceOp::kMax,
                                             ReduceOrder::kFixed, parts.clock->Now() + kPatience));
  if (start_step == 0) return absl::FailedPreconditionError("no step was made");
  LS_RETURN_IF_ERROR(parts.catch_up(start_step));
  LS_RETURN_IF_ERROR(parts.look_at_folders(left, communicator.get()));
  std::vector<int> holders;
  Generation generation = left;
  generation.set_start_step(start_step);
  LS_RETURN_IF_ERROR(parts.trainer->JoinState(communicator.get(), generation,
                                              RunDir(parts.bootstrap->assignment()), &holders));
  return parts.trainer->SaveTogether(communicator.get());
}

}  // namespace lockstep::worker
