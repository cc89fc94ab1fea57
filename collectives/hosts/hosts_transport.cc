// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_transport.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/hosts/host_groups.h"
#include "collectives/tcp/joiner.h"
#include "collectives/tcp/socket_io.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Open files besides the connections: those who come and are not known yet, checkpoints, logs.
constexpr int64_t kSpareFiles = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<HostsTransport>> HostsTransport::Create(Options options) {
  options.shm.arena_bytes += HostsCommunicator::kAllAreaBytes;
  LS_ASSIGN_OR_RETURN(std::unique_ptr<ShmTransport> shm, ShmTransport::Create(options.shm));
  LS_ASSIGN_OR_RETURN(Listener listener, Listener::Open(options.listen));
  LS_ASSIGN_OR_RETURN(void* const area,
                      shm->Allocate(HostsCommunicator::kAllAreaBytes, "what passes between hosts"));
  auto transport = std::unique_ptr<HostsTransport>(
      new HostsTransport(std::move(options), std::move(shm), std::move(listener)));
  transport->area_ = static_cast<char*>(area);
  return transport;
}

HostsTransport::HostsTransport(Options options, std::unique_ptr<ShmTransport> shm,
                               Listener listener)
    : options_(std::move(options)), shm_(std::move(shm)), listener_(std::move(listener)) {}

void HostsTransport::AbortConnect(int64_t generation, const std::string& reason) {
  shm_->AbortConnect(generation, reason);
  absl::MutexLock lock(&mu_);
  if (generation > aborted_generation_) {
    aborted_generation_ = generation;
    abort_reason_ = reason;
  }
  if (connecting_ != nullptr && connecting_->generation() <= generation) connecting_->Abort(reason);
}

absl::StatusOr<std::unique_ptr<Communicator>> HostsTransport::Connect(const GroupSpec& spec,
                                                                      absl::Time deadline) {
  HostsGroup group;
  group.hosts = GroupByHost(spec.members);
  if (group.hosts.hosts() <= 1) return shm_->Connect(spec, deadline);
  const int world = static_cast<int>(spec.members.size());
  for (int r = 0; r < world; ++r) {
    if (spec.members[static_cast<size_t>(r)].rank != r || spec.rank < 0 || spec.rank >= world) {
      return absl::InternalError(absl::StrCat("generation ", spec.generation,
                                              ": its members are not those of rank ", spec.rank,
                                              " in order"));
    }
  }
  group.generation = spec.generation;
  group.rank = spec.rank;
  LS_ASSIGN_OR_RETURN(group.deal, DealTree(spec.members, group.hosts));
  for (const GroupMember& member : spec.members) {
    group.names.push_back(member.host.empty()
                              ? absl::StrCat("rank ", member.rank)
                              : absl::StrCat("rank ", member.rank, " (host ", member.host, ")"));
  }
  group.transport = shm_.get();
  group.area = area_;
  group.overlaps = options_.overlap;
  GroupSpec local = spec;
  local.members.clear();
  for (const int rank : group.hosts.ranks[static_cast<size_t>(group.hosts.host_of(spec.rank))]) {
    local.members.push_back(spec.members[static_cast<size_t>(rank)]);
  }
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> near, shm_->Connect(local, deadline));
  group.local.reset(static_cast<ShmCommunicator*>(near.release()));
  return ConnectHosts(spec, std::move(group), deadline);
}

absl::StatusOr<std::unique_ptr<Communicator>> HostsTransport::ConnectHosts(const GroupSpec& spec,
                                                                           HostsGroup group,
                                                                           absl::Time deadline) {
  ShmCommunicator* const near = group.local.get();
  group.wake = std::make_unique<UniqueFd>(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!group.wake->valid()) return ErrnoStatus(errno, "cannot make an eventfd");
  near->abort_flag()->WakeAlso(group.wake->get());
  {
    absl::MutexLock lock(&mu_);
    connecting_ = near;
    if (spec.generation <= aborted_generation_) connecting_->Abort(abort_reason_);
  }
  absl::StatusOr<std::unique_ptr<Mesh>> mesh = JoinHosts(spec, &group, deadline);
  {
    // From here on an abort is the caller's; it must not come to a communicator that is gone.
    absl::MutexLock lock(&mu_);
    connecting_ = nullptr;
    if (!mesh.ok()) near->abort_flag()->WakeAlso(-1);
  }
  LS_RETURN_IF_ERROR(mesh.status());
  group.mesh = *std::move(mesh);
  LS_ASSIGN_OR_RETURN(std::unique_ptr<HostsCommunicator> communicator,
                      HostsCommunicator::Create(std::move(group)));
  return communicator;
}

absl::StatusOr<std::unique_ptr<Mesh>> HostsTransport::JoinHosts(const GroupSpec& spec,
                                                                HostsGroup* hosts_group,
                                                                absl::Time deadline) {
  HostsGroup& group = *hosts_group;
  ShmCommunicator* const near = group.local.get();
  const Communicator::SharedPiece piece{area_, HostsCommunicator::kAllAreaBytes};
  LS_ASSIGN_OR_RETURN(const Communicator::SharedPieces areas,
                      near->Share(absl::MakeConstSpan(&piece, 1), deadline));
  for (const std::vector<const char*>& each : areas) group.areas.push_back(each[0]);
  MeshOptions mesh;
  mesh.generation = spec.generation;
  mesh.world = static_cast<int>(spec.members.size());
  mesh.self = spec.rank;
  mesh.names = group.names;
  mesh.wake = group.wake->get();
  mesh.alive = [near] { return near->CheckAlive(); };
  mesh.recorder = near->recorder();
  mesh.may_spin = near->may_spin();
  mesh.silence = options_.silence;
  JoinOptions join;
  join.group = &spec;
  for (const GroupMember& member : spec.members) {
    if (group.hosts.host_of(member.rank) != group.hosts.host_of(spec.rank)) {
      join.peers.push_back(member.rank);
    }
  }
  // Descriptors have the lowest numbers that are free, so the newest one tells how many are open.
  LS_RETURN_IF_ERROR(AllowConnections(group.wake->get() + 1,
                                      static_cast<int64_t>(join.peers.size()) + kSpareFiles));
  join.listener = &listener_;
  join.wake = mesh.wake;
  join.alive = mesh.alive;
  join.waiting = [near](int rank) { near->recorder()->Waiting(rank); };
  Operation operation;
  operation.kind = OpKind::kConnect;
  operation.generation = spec.generation;
  near->recorder()->Begin(operation, 0);
  const absl::Time reached_by = std::min(deadline, Clock::Real()->Now() + spec.reach_within);
  absl::StatusOr<std::vector<Connection>> connections =
      Joiner(std::move(join)).Run(reached_by, &departure_);
  near->recorder()->End(connections.status().code());
  LS_RETURN_IF_ERROR(connections.status());
  mesh.connections = *std::move(connections);
  return std::make_unique<Mesh>(std::move(mesh));
}

}  // namespace lockstep
