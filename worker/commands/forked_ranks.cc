// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/forked_ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/shm/shm_transport.h"
#include "common/clock.h"
#include "common/life.h"
#include "common/random_hex.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr absl::Duration kConnectWithin = absl::Seconds(30);
constexpr int kMaxText = 256;

// What the processes tell each other: addresses, and who failed first.
struct Board {
  struct Rank {
    std::atomic<bool> ready;
    char address[kMaxText];
    char key[kMaxText];
    int64_t pid;
    int port;
  };
  std::atomic<int> failed_code;  // 0: nobody has
  std::atomic<bool> failed_written;
  char secret[kMaxText];
  char message[4 * kMaxText];
  Rank ranks[1];  // more follow
};

void Write(std::string_view text, char* to, size_t room) {
  const size_t n = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

class SharedBoard {
 public:
  static absl::StatusOr<std::unique_ptr<SharedBoard>> Create(int ranks) {
    const size_t bytes = sizeof(Board) + static_cast<size_t>(ranks) * sizeof(Board::Rank);
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, "cannot share memory between the ranks");
    return std::unique_ptr<SharedBoard>(new SharedBoard(memory, bytes));
  }
  ~SharedBoard() { ::munmap(board_, bytes_); }
  Board* operator->() const { return board_; }

 private:
  // The pages are zero, which is what all fields begin as.
  SharedBoard(void* memory, size_t bytes) : board_(static_cast<Board*>(memory)), bytes_(bytes) {}
  Board* const board_;
  const size_t bytes_;
};

void Fail(const SharedBoard& board, const absl::Status& status) {
  int none = 0;
  if (!board->failed_code.compare_exchange_strong(none, static_cast<int>(status.code()))) return;
  Write(std::string(status.message()), board->message, sizeof(board->message));
  board->failed_written.store(true, std::memory_order_release);
}

absl::StatusOr<std::vector<GroupMember>> MembersOf(int self, const ForkedRanks& options,
                                                   const SharedBoard& board) {
  const absl::Time deadline = Clock::Real()->Now() + kConnectWithin;
  std::vector<GroupMember> members;
  for (int r = 0; r < options.ranks; ++r) {
    const Board::Rank& peer = board->ranks[r];
    while (!peer.ready.load(std::memory_order_acquire)) {
      if (Clock::Real()->Now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", r, " did not start"));
      }
      absl::SleepFor(absl::Microseconds(200));
    }
    GroupMember member;
    member.rank = member.life_slot = r;
    member.pid = peer.pid;
    member.shm_address = peer.address;
    member.key = peer.key;
    member.shards = DealShards(options.shards, options.ranks, r);
    if (!options.nodes.empty()) {
      member.node = member.host = options.nodes[static_cast<size_t>(r)];
      if (member.node != options.nodes[static_cast<size_t>(self)]) member.life_slot = -1;
      member.tcp_addresses = {
          absl::StrCat(options.addresses[static_cast<size_t>(r)], ":", peer.port)};
    }
    members.push_back(member);
  }
  return members;
}

absl::Status RunRank(int rank, const ForkedRanks& options, const SharedBoard& board,
                     const LifePage& page,
                     const std::function<absl::Status(Communicator&, Transport&)>& body) {
  if (options.enter) LS_RETURN_IF_ERROR(options.enter(rank));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<LifePage> life,
                      LifePage::Open(UniqueFd(::dup(page.fd()))));
  LS_RETURN_IF_ERROR(life->Take(rank));
  ShmTransport::Options shm;
  shm.arena_bytes = options.arena_bytes;
  shm.life = life.get();
  std::unique_ptr<Transport> transport;
  if (options.nodes.empty()) {
    LS_ASSIGN_OR_RETURN(transport, ShmTransport::Create(shm));
  } else {
    HostsTransport::Options hosts;
    hosts.shm = shm;
    LS_ASSIGN_OR_RETURN(transport, HostsTransport::Create(hosts));
  }
  if (options.over) {
    LS_ASSIGN_OR_RETURN(transport, options.over(rank, std::move(transport)));
  }
  Board::Rank& own = board->ranks[rank];
  Write(transport->address(), own.address, sizeof(own.address));
  Write(transport->key(), own.key, sizeof(own.key));
  own.pid = ::getpid();
  own.port = transport->tcp_port();
  own.ready.store(true, std::memory_order_release);
  GroupSpec spec;
  spec.generation = 1;
  spec.rank = rank;
  spec.secret = board->secret;
  LS_ASSIGN_OR_RETURN(spec.members, MembersOf(rank, options, board));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                      transport->Connect(spec, Clock::Real()->Now() + kConnectWithin));
  absl::Status done = body(*communicator, *transport);
  if (done.ok()) return communicator->Barrier(Clock::Real()->Now() + kConnectWithin);
  Fail(board, done);  // before the others fail because this rank has left
  return done;
}

// Waits for one child; whether it ended well.
absl::Status WaitForOne(std::vector<pid_t>* children) {
  int status = 0;
  pid_t pid = -1;
  while ((pid = ::wait(&status)) < 0 && errno == EINTR) {
  }
  const auto it = std::find(children->begin(), children->end(), pid);
  if (it == children->end()) return absl::InternalError("a rank was lost");
  *it = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  const auto rank = it - children->begin();
  return absl::InternalError(
      WIFSIGNALED(status) ? absl::StrCat("rank ", rank, " was ended by signal ", WTERMSIG(status))
                          : absl::StrCat("rank ", rank, " failed"));
}

}  // namespace

absl::Status RunForked(const ForkedRanks& options,
                       const std::function<absl::Status(Communicator&, Transport&)>& body) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<SharedBoard> board, SharedBoard::Create(options.ranks));
  Write(RandomHex(32), (*board)->secret, sizeof((*board)->secret));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<LifePage> page, LifePage::Create());
  std::vector<pid_t> children;
  const pid_t parent = ::getpid();
  absl::Status status;
  for (int r = 0; r < options.ranks && status.ok(); ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const absl::Status result = RunRank(r, options, *board, *page, body);
      if (!result.ok()) Fail(*board, result);
      ::_exit(result.ok() ? 0 : 1);
    }
    if (pid < 0) {
      status = ErrnoStatus(errno, "cannot start a rank");
    } else {
      children.push_back(pid);
    }
  }
  for (size_t i = 0, n = children.size(); i < n; ++i) {
    if (!status.ok()) {
      for (const pid_t pid : children) {
        if (pid > 0) ::kill(pid, SIGKILL);
      }
    }
    const absl::Status ended = WaitForOne(&children);
    if (status.ok()) status = ended;
  }
  if ((*board)->failed_written.load(std::memory_order_acquire)) {
    return absl::Status(static_cast<absl::StatusCode>((*board)->failed_code.load()),
                        (*board)->message);
  }
  return status;
}

}  // namespace lockstep::worker
