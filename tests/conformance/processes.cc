// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/processes.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "common/fd_passing.h"

namespace lockstep {

absl::Time MuchLater() { return absl::Now() + absl::Seconds(100); }

Processes::Processes(int world, int shards, const Body& body, const std::vector<std::string>& nodes,
                     size_t arena_bytes)
    : nodes_(nodes), arena_bytes_(arena_bytes) {
  auto page = LifePage::Create();
  LS_CHECK(page.ok()) << page.status().ToString();
  page_ = *std::move(page);
  for (int r = 0; r < world; ++r) Start(r, body);
  std::string table;
  for (int r = 0; r < world; ++r) {
    const ShardRange range = DealShards(shards, world, r);
    absl::StrAppend(&table, r == 0 ? "" : ";", Receive(r), ",", pids_[static_cast<size_t>(r)], ",",
                    range.begin, ",", range.end);
  }
  for (int r = 0; r < world; ++r) {
    LS_CHECK(SendFds(sockets_[static_cast<size_t>(r)].get(), table, {}).ok());
  }
}

Processes::~Processes() {
  for (const pid_t pid : pids_) {
    if (pid < 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

std::string Processes::Receive(int rank) {
  auto message = RecvFds(sockets_[static_cast<size_t>(rank)].get());
  return message.ok() ? message->data : absl::StrCat("lost: ", message.status().ToString());
}

void Processes::Send(int rank, const std::string& message) {
  LS_CHECK(SendFds(sockets_[static_cast<size_t>(rank)].get(), message, {}).ok());
}

bool Processes::WaitForDeath(int rank, absl::Duration timeout) const {
  const LifePage::Ref slots[] = {{page_.get(), rank}};
  return !LifePage::WaitForAnyDeath(slots, timeout).empty();
}

bool Processes::EndsWell(int rank) {
  int status = 0;
  ::waitpid(std::exchange(pids_[static_cast<size_t>(rank)], -1), &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void Processes::Kill(int rank) { ::kill(pids_[static_cast<size_t>(rank)], SIGKILL); }
void Processes::Stop(int rank) { ::kill(pids_[static_cast<size_t>(rank)], SIGSTOP); }

void Processes::Start(int rank, const Body& body) {
  int pair[2];
  LS_CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const pid_t pid = ::fork();
  LS_CHECK_GE(pid, 0);
  if (pid == 0) {
    sockets_.clear();
    ::close(pair[0]);
    Child(rank, pair[1], body);
    ::_exit(0);
  }
  ::close(pair[1]);
  timeval patience{60, 0};
  ::setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockets_.emplace_back(pair[0]);
  pids_.push_back(pid);
}

void Processes::Child(int rank, int socket, const Body& body) {
  auto life = LifePage::Open(UniqueFd(::dup(page_->fd())));
  LS_CHECK(life.ok());
  LS_CHECK((*life)->Take(rank).ok());
  HostsTransport::Options options;
  options.shm.arena_bytes = arena_bytes_;
  options.shm.life = life->get();
  absl::StatusOr<std::unique_ptr<Transport>> transport;
  if (nodes_.empty()) {
    transport = ShmTransport::Create(options.shm);
  } else {
    transport = HostsTransport::Create(options);
  }
  LS_CHECK(transport.ok()) << transport.status().ToString();
  LS_CHECK(SendFds(socket,
                   absl::StrCat((*transport)->address(), ",", (*transport)->key(), ",",
                                (*transport)->tcp_port()),
                   {})
               .ok());
  auto table = RecvFds(socket);
  LS_CHECK(table.ok());
  GroupSpec spec{1, "job", "secret", {}, rank};
  for (const auto row : absl::StrSplit(table->data, ';')) {
    const std::vector<std::string> fields = absl::StrSplit(row, ',');
    GroupMember member;
    member.rank = static_cast<int>(spec.members.size());
    member.shm_address = fields[0];
    member.key = fields[1];
    member.tcp_addresses = {absl::StrCat("127.0.0.1:", fields[2])};
    LS_CHECK(absl::SimpleAtoi(fields[3], &member.pid));
    LS_CHECK(absl::SimpleAtoi(fields[4], &member.shards.begin));
    LS_CHECK(absl::SimpleAtoi(fields[5], &member.shards.end));
    member.life_slot = member.rank;
    if (!nodes_.empty()) {
      member.node = member.host = nodes_[static_cast<size_t>(member.rank)];
      // The life words of another host cannot be seen.
      if (member.node != nodes_[static_cast<size_t>(rank)]) member.life_slot = -1;
    }
    spec.members.push_back(member);
  }
  auto communicator = (*transport)->Connect(spec, MuchLater());
  LS_CHECK(communicator.ok()) << communicator.status().ToString();
  const std::string result = body(**communicator, **transport, socket);
  LS_CHECK(SendFds(socket, result, {}).ok());
}

}  // namespace lockstep
