// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

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

TEST(ArenaTest, ReservedMemoryComesAndGoes) {
  constexpr size_t kReserved = 1 << 20;
  auto arena = OwnArena::Create(4096, kReserved);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const int64_t before = MemoryOf(**arena);
  auto reserved = (*arena)->ReservePages(kReserved, "moments");
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  char* const at = static_cast<char*>(*reserved);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % kPageBytes, 0u);
  EXPECT_EQ(MemoryOf(**arena), before);
  EXPECT_FALSE((*arena)->ReservePages(1, "more").ok());
  ASSERT_TRUE((*arena)->CommitPages(at + 100, kReserved / 2, "a half").ok());
  std::memset(at, 7, kReserved / 2);
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(kReserved / 2 + kPageBytes));
  // A peer reads it and cannot write.
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (*arena)->fd(), 0),
            MAP_FAILED);
  EXPECT_EQ(::pwrite((*arena)->fd(), "x", 1, 0), -1);
  auto peer = PeerArena::Map(UniqueFd(::dup((*arena)->fd())));
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->base()[(*arena)->OffsetOf(at, 1)], 7);
  // Whole pages go; what shares one with a neighbour stays.
  (*arena)->ReleasePages(at + 100, kReserved / 2);
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(2 * kPageBytes));
  EXPECT_EQ(at[99], 7);
  ASSERT_TRUE((*arena)->CommitPages(at, kReserved, "all").ok());
  EXPECT_EQ(MemoryOf(**arena), before + static_cast<int64_t>(kReserved));
  EXPECT_EQ(at[99], 7);
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
