// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/arena.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/shm/handoff.h"
#include "common/fd_passing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(ArenaTest, AllocatesAlignedZeroedMemoryAndNamesWhatIsMissing) {
  auto arena = OwnArena::Create(1000);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto first = (*arena)->Allocate(100, "gradients");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*first) % 64, 0u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(static_cast<char*>(*first)[i], 0);
  EXPECT_NE((*arena)->OffsetOf(*first, 100), CallSlot::kForeign);
  EXPECT_EQ((*arena)->OffsetOf(&arena, 8), CallSlot::kForeign);
  const auto second = (*arena)->Allocate(1 << 20, "moments");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("moments"));
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("1048576"));
  EXPECT_FALSE((*arena)->Allocate(SIZE_MAX, "all").ok());
}

TEST(ArenaTest, LackOfMemoryIsAnError) {
  EXPECT_EQ(OwnArena::Create(size_t{1} << 46).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ArenaTest, PeersReadAndCannotWrite) {
  auto arena = OwnArena::Create(4096);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto memory = (*arena)->Allocate(64, "x");
  ASSERT_TRUE(memory.ok());
  auto server = ArenaServer::Start((*arena)->fd());
  ASSERT_TRUE(server.ok()) << server.status();
  auto fd = FetchArena((*server)->address(), (*server)->key(), absl::Seconds(10));
  ASSERT_TRUE(fd.ok()) << fd.status();
  // The descriptor that peers get cannot be written, mapped writable, or cut.
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(fd->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd->get(), 0), -1);
  auto peer = PeerArena::Map(*std::move(fd));
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::strcpy(static_cast<char*>(*memory), "hello");
  const uint64_t offset = (*arena)->OffsetOf(*memory, 64);
  EXPECT_STREQ((*peer)->base() + offset, "hello");
  // It stays readable when its owner is gone.
  server->reset();
  arena->reset();
  EXPECT_STREQ((*peer)->base() + offset, "hello");
}

// Bytes of the file that have memory.
int64_t MemoryOf(const OwnArena& arena) {
  struct stat status {};
  EXPECT_EQ(::fstat(arena.fd(), &status), 0);
  return status.st_blocks * 512;
}

// Pages of this system, and larger ones, of which every system can do as if it had them.
std::vector<ArenaOptions> OfPages() {
  ArenaOptions larger;
  larger.page_bytes = 16 * PageSize();
  return {ArenaOptions(), larger};
}

class ArenaPagesTest : public testing::TestWithParam<ArenaOptions> {};

TEST_P(ArenaPagesTest, ReservedMemoryComesAndGoes) {
  const size_t page = GetParam().page_bytes, kReserved = 16 * page;
  auto arena = OwnArena::Create(4096, kReserved, GetParam());
  ASSERT_TRUE(arena.ok()) << arena.status();
  const int64_t before = MemoryOf(**arena);
  auto reserved = (*arena)->ReservePages(kReserved, "moments");
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  char* const at = static_cast<char*>(*reserved);
  EXPECT_EQ(static_cast<size_t>(at - (*arena)->base()) % page, 0u);
  EXPECT_EQ(MemoryOf(**arena), before);
  EXPECT_FALSE((*arena)->ReservePages(1, "more").ok());
  ASSERT_TRUE((*arena)->CommitPages(at + 100, kReserved / 2, "a half").ok());
  std::memset(at, 7, kReserved / 2);
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(kReserved / 2 + page));
  // A peer reads it and cannot write.
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (*arena)->fd(), 0),
            MAP_FAILED);
  EXPECT_EQ(::pwrite((*arena)->fd(), "x", 1, 0), -1);
  auto peer = PeerArena::Map(UniqueFd(::dup((*arena)->fd())));
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->base()[(*arena)->OffsetOf(at, 1)], 7);
  // Whole pages go; what shares one with a neighbour stays.
  (*arena)->ReleasePages(at + 100, kReserved / 2);
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(2 * page));
  EXPECT_EQ(at[99], 7);
  ASSERT_TRUE((*arena)->CommitPages(at, kReserved, "all").ok());
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(kReserved));
  EXPECT_EQ(at[99], 7);
}

// Returns whether the byte at `at` can be read.
bool CanRead(const char* at) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  return ::write(to.get(), at, 1) == 1;
}

TEST_P(ArenaPagesTest, OfADeadOwnersMemoryWholePagesAreKept) {
  const size_t page = GetParam().page_bytes;
  auto arena = OwnArena::Create(8 * page, 0, GetParam());
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto memory = (*arena)->Allocate(8 * page, "gradients");
  ASSERT_TRUE(memory.ok());
  std::memset(*memory, 7, 8 * page);
  auto peer = PeerArena::Map(UniqueFd(::dup((*arena)->fd())), page);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const char* const base = (*peer)->base();
  // Two ranges in one page, and one over the border of two others.
  const size_t first = (kHeapOffset / page + 2) * page, second = first + 4 * page;
  (*peer)->Release({{base + first + page / 2, page / 4},
                    {base + second - 10, 20},
                    {base + first + 10, 20},
                    {base + first, 0}});
  arena->reset();
  EXPECT_EQ((*peer)->header()->magic, kArenaMagic);
  for (const size_t at : {first, first + 10, first + page - 1, second - page, second + page - 1}) {
    ASSERT_TRUE(CanRead(base + at)) << at - first;
    EXPECT_EQ(base[at], 7) << at - first;
  }
  for (const size_t at : {first - 1, first + page, second - page - 1, second + page}) {
    EXPECT_FALSE(CanRead(base + at)) << at - first;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ArenaPagesTest, testing::ValuesIn(OfPages()), [](const auto& info) {
  return absl::StrCat("Of", info.param.page_bytes >> 10, "KiB");
});

// Returns whether a process waits for a lock of `of`.
bool Waits(pid_t of) {
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    const bool of_it = absl::StrContains(line, absl::StrCat(" ", of, " "));
    if (of_it && absl::StrContains(line, "-> POSIX")) return true;
  }
  return false;
}

TEST(ArenaTest, WorkersOfAHostTakeMemoryOneAfterAnother) {
  if (::access("/proc/locks", R_OK) != 0) GTEST_SKIP() << "nothing tells who waits for a lock";
  ArenaOptions options;
  const UniqueFd shared(::memfd_create("turns", MFD_CLOEXEC));
  options.turns = shared.get();
  options.plenty_bytes = INT64_MAX / 2;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t self = ::getpid();
  // Another worker, which has looked and not taken yet. It goes on when this one waits for it.
  const pid_t pid = ::fork();
  if (pid == 0) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    if (::fcntl(shared.get(), F_SETLKW, &lock) != 0) ::_exit(1);
    if (::write(to.get(), "+", 1) != 1) ::_exit(1);
    from.reset();
    while (!Waits(self) && ::getppid() == self) ::sched_yield();
    ::_exit(::write(to.get(), "+", 1) == 1 ? 0 : 1);
  }
  char said = 0;
  ASSERT_EQ(::read(from.get(), &said, 1), 1);
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(OwnArena::Create(4096, 0, options).ok());
  EXPECT_EQ(::read(from.get(), &said, 1), 1) << "it took memory out of turn";
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST(ArenaTest, TheKeyIsNeeded) {
  auto arena = OwnArena::Create(0);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto server = ArenaServer::Start((*arena)->fd());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->key().size(), 64u);
  std::string wrong = (*server)->key();
  wrong[5] = wrong[5] == '0' ? '1' : '0';
  EXPECT_EQ(FetchArena((*server)->address(), wrong, absl::Seconds(10)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FetchArena("lockstep-nobody", wrong, absl::Seconds(10)).status().code(),
            absl::StatusCode::kUnavailable);
}

// Returns what another user's process gets who knows even the key: 0 when nothing.
int AttackAsNobody(const std::string& address, const std::string& key, int arena_fd) {
  const std::string path = absl::StrCat("/proc/", ::getpid(), "/fd/", arena_fd);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    if (::open(path.c_str(), O_RDONLY) >= 0) ::_exit(2);
    if (FetchArena(address, key, absl::Seconds(10)).ok()) ::_exit(3);
    // A client that does not look at who the server is.
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data(), address.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) ::_exit(4);
    SendFds(socket.get(), key, {}).IgnoreError();
    const absl::StatusOr<FdMessage> answer = RecvFds(socket.get());
    ::_exit(answer.ok() && !answer->fds.empty() ? 5 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ArenaTest, AnotherUserGetsNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can try as another user";
  auto arena = OwnArena::Create(0);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto server = ArenaServer::Start((*arena)->fd());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(AttackAsNobody((*server)->address(), (*server)->key(), (*arena)->fd()), 0);
  // Its own user gets it after that.
  EXPECT_TRUE(FetchArena((*server)->address(), (*server)->key(), absl::Seconds(10)).ok());
}

TEST(ArenaTest, OtherMemoryIsRefused) {
  UniqueFd plain(::memfd_create("x", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), 8 << 20), 0);
  UniqueFd copy(::dup(plain.get()));
  EXPECT_EQ(PeerArena::Map(std::move(copy)).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::fcntl(plain.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(PeerArena::Map(std::move(plain)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lockstep
