// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group_end.h"
#include "common/check.h"

namespace lockstep {
namespace {

// Waits until every other host's ranks have published a commit.
class CommitWait : public MeshUser {
 public:
  CommitWait(const Mesh* mesh, int64_t step) : mesh_(mesh), step_(step) {}
  bool Next(int /*rank*/, OutgoingFrame* /*frame*/) override { return false; }
  absl::StatusOr<char*> Place(int /*rank*/, const FrameHeader& /*header*/) override {
    return nullptr;
  }
  absl::Status Arrived(int /*rank*/, const FrameHeader& /*header*/) override {
    return absl::OkStatus();
  }
  bool Done() const override {
    return std::none_of(mesh_->ranks().begin(), mesh_->ranks().end(),
                        [this](int rank) { return WaitsFor(rank); });
  }
  bool WaitsFor(int rank) const override { return mesh_->link(rank)->committed < step_; }

 private:
  const Mesh* const mesh_;
  const int64_t step_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostsCommunicator>> HostsCommunicator::Create(HostsGroup group) {
  LS_ASSIGN_OR_RETURN(HostsSums sums, HostsSums::Create(group.deal, group.hosts, group.rank));
  auto communicator = std::unique_ptr<HostsCommunicator>(new HostsCommunicator(std::move(group)));
  communicator->sums_ = std::move(sums);
  return communicator;
}

HostsCommunicator::HostsCommunicator(HostsGroup group) : group_(std::move(group)) {
  context_.hosts = group_.hosts;
  context_.rank = group_.rank;
  context_.mesh = group_.mesh.get();
  context_.recorder = group_.local->recorder();
  context_.heard.resize(static_cast<size_t>(group_.hosts.hosts()));
  const auto world = static_cast<size_t>(world_size());
  sent_.resize(world, 0);
  received_.resize(world, 0);
  memory_.resize(world);
  for (const int rank : group_.hosts.ranks[static_cast<size_t>(context_.my_host())]) {
    places_ = std::max(places_, 1 + group_.deal.nodes[static_cast<size_t>(rank)].size());
  }
  // A rank has room for what it gives and for what it receives for its host.
  size_t most = 0;
  for (int to = 0; to < group_.hosts.hosts(); ++to) {
    size_t received = 1;
    for (int from = 0; from < group_.hosts.hosts(); ++from) {
      const int ranks = group_.hosts.size(from), share = group_.hosts.size(to);
      if (from != to) received += static_cast<size_t>((ranks + share - 1) / share);
    }
    most = std::max(most, received);
  }
  block_bytes_ = kAreaBytes / 2 / most / 64 * 64;
  group_.local->LeaveStartedToCaller();
  group_.local->SetWatch([this] { return Watch(); });
  if (group_.overlaps) thread_ = std::make_unique<MeshThread>(context_.mesh);
}

HostsCommunicator::~HostsCommunicator() {
  TakeBack();
  // Frames that were begun send what lies in memory of this one: what is left of them is copied.
  context_.mesh->Leave(aborted() ? group_.local->CheckAlive() : absl::OkStatus());
  group_.local->SetWatch(nullptr);
  group_.local->abort_flag()->WakeAlso(-1);
}

absl::Status HostsCommunicator::Run(const Operation& operation, int64_t bytes,
                                    const std::function<absl::Status()>& body) {
  LS_RETURN_IF_ERROR(BeginCall(operation, bytes));
  return EndCall(operation, body());
}

absl::Status HostsCommunicator::AnnounceHere(const Operation& operation, const void* mine,
                                             size_t size, void* all, absl::Time deadline,
                                             HostsCall* ends) {
  // Another call than the one that is due goes the same way, so that all ranks hear of it.
  const bool wrong = ends == nullptr && begun_.reduction != nullptr;
  if (wrong) ends = begun_.reduction.get();
  absl::Status status = group_.local->Announce(operation, mine, size, all, deadline);
  if (wrong && status.ok()) {
    LS_RETURN_IF_ERROR(ends->EndsWith(operation));
    LS_RETURN_IF_ERROR(Exchange(ends, deadline));
    return absl::InternalError(
        absl::StrCat(ToString(operation), ": parts of a tree_reduce were begun before"));
  }
  if (EndOf(status).cause != EndCause::kMismatch || !absl::IsFailedPrecondition(status)) {
    return status;
  }
  // The other hosts are told all that is called here, so that every rank names the same two.
  HostsCall call(&context_, operation);
  HostsCall* const telling = ends != nullptr ? ends : &call;
  telling->TellDifferent(group_.local->AnnouncedCalls());
  absl::Status told = ends != nullptr ? ends->EndsWith(operation) : absl::OkStatus();
  if (told.ok()) told = Exchange(telling, deadline);
  return absl::IsFailedPrecondition(told) ? told : status;
}

absl::Status HostsCommunicator::Drive(MeshUser* user, absl::Time deadline) {
  absl::Status status = context_.mesh->Run(user, deadline);
  if (absl::IsDeadlineExceeded(status) && status.message().empty()) return MissingError(*user);
  return status;
}

absl::Status HostsCommunicator::MissingError(const MeshUser& user) {
  std::vector<std::string> details;
  std::vector<int> missing;
  for (const int rank : context_.mesh->ranks()) {
    if (!user.WaitsFor(rank)) continue;
    const Link& link = *context_.mesh->link(rank);
    // Who waits for another is not missing itself.
    const bool told = link.waiting_for >= 0 && link.waiting_call > link.heard.sequence;
    const int culprit = told ? link.waiting_for : rank;
    if (std::find(missing.begin(), missing.end(), culprit) != missing.end()) continue;
    missing.push_back(culprit);
    const Operation& last = link.completed;
    std::string name = context_.mesh->name(culprit);
    const bool host = name.back() == ')';
    if (host) name.pop_back();
    details.push_back(
        absl::StrCat(name, host ? ", " : " (", "last completed ",
                     last.kind == OpKind::kNone
                         ? "nothing"
                         : absl::StrCat(std::string(OpKindName(last.kind)), " ", last.sequence),
                     ")"));
  }
  return WithEnd(absl::DeadlineExceededError(
                     absl::StrCat(ToString(current_), " on ", context_.mesh->name(rank()),
                                  ": waited in vain for ", absl::StrJoin(details, ", "))),
                 {EndCause::kPeerMissing, missing.empty() ? -1 : missing.front()});
}

absl::Status HostsCommunicator::Watch() {
  LS_RETURN_IF_ERROR(context_.mesh->Poll(begun_.reduction.get()));
  const auto record = context_.recorder->Latest();
  if (!record.has_value() || record->waiting_for < 0 || record->waiting_for == told_waiting_ ||
      !IsNumbered(current_.kind) || !(record->operation == current_)) {
    return absl::OkStatus();
  }
  told_waiting_ = record->waiting_for;
  FrameHeader header;
  header.kind = FrameKind::kWaiting;
  header.operation = current_;
  header.part = static_cast<uint32_t>(told_waiting_);
  for (const int rank : context_.mesh->ranks()) {
    if (group_.hosts.Teller(context_.my_host(), rank) == this->rank()) {
      context_.mesh->Tell(rank, header);
    }
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::Barrier(absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kBarrier, 0, DType::kUInt8);
  return Run(operation, 0, [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(AnnounceHere(operation, nullptr, 0, nullptr, deadline));
    // All ranks of a host are there when one of them speaks.
    HostsCall call(&context_, operation);
    return Exchange(&call, deadline);
  });
}

absl::StatusOr<Communicator::SharedPieces> HostsCommunicator::Share(
    absl::Span<const SharedPiece> /*pieces*/, absl::Time /*deadline*/) {
  return absl::UnimplementedError("ranks on several hosts cannot read each other's memory");
}

void HostsCommunicator::PublishCommitted(int64_t step) {
  TakeBack();
  group_.local->PublishCommitted(step);
  FrameHeader header;
  header.kind = FrameKind::kCommitted;
  header.offset = static_cast<uint64_t>(step);
  context_.mesh->Tell(header);
}

absl::Status HostsCommunicator::WaitCommitted(int64_t step, absl::Time deadline) {
  TakeBack();
  const absl::Status local = group_.local->WaitCommitted(step, deadline);
  if (!local.ok()) context_.mesh->Leave(local);
  LS_RETURN_IF_ERROR(local);
  CommitWait wait(context_.mesh, step);
  if (wait.Done()) return absl::OkStatus();
  Operation operation;
  operation.kind = OpKind::kWaitCommitted;
  operation.generation = generation();
  operation.step = step;
  return Run(operation, 0, [&] { return Drive(&wait, deadline); });
}

std::vector<int64_t> HostsCommunicator::CommittedSteps() const {
  TakeBack();
  const std::vector<int64_t> local = group_.local->CommittedSteps();
  std::vector<int64_t> steps;
  for (int r = 0; r < world_size(); ++r) {
    steps.push_back(IsLocal(r) ? local[static_cast<size_t>(group_.hosts.index_of(r))]
                               : context_.mesh->link(r)->committed);
  }
  return steps;
}

std::optional<ReducedStep> HostsCommunicator::NewestReduce() const {
  // In its own memory it is there whatever the others do meanwhile.
  if (!newest_is_own_ && !group_.local->AllReached(newest_tick_)) return std::nullopt;
  return newest_;
}

void HostsCommunicator::ReleaseDead() {
  TakeBack();  // it reads the memory of the host's ranks
  // So do frames that were begun; what is left of them is copied before any of that memory goes.
  context_.mesh->Leave(group_.local->CheckAlive());
  // A step that was whole here has been finished before this; another one is taken from who has it.
  if (!newest_is_own_ && !group_.local->CheckAlive().ok()) newest_.reset();
  group_.local->ReleaseDead();
}

}  // namespace lockstep
