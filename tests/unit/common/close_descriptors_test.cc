// SPDX-License-Identifier: Apache-2.0
#include "common/close_descriptors.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kFirst = 20;
constexpr int kNear = 24;
constexpr int kFar = 900;
constexpr int kKept = 30;
constexpr uint32_t kNeverOpen = 800;

// As a kernel before 5.9 or a container's filter: there is no close_range(2). To close a number
// that was never open ends the process.
bool RefuseCloseRange() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kNeverOpen, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool Open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// Returns the status of a child that closes from kFirst on, but for `keep`; it exits with 0 when
// nothing else is left.
int StatusOfChild(int keep, bool refused) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 1024;
    bool good = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {kNear, kKept, kFar}) good &= ::dup2(null, fd) == fd;
    if (refused) good &= RefuseCloseRange();
    CloseDescriptors(kFirst, keep);
    good &= Open(null) && !Open(kNear) && !Open(kFar) && Open(kKept) == (keep == kKept);
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(CloseDescriptorsTest, ClosesAllButTheOneToKeep) {
  EXPECT_EQ(StatusOfChild(-1, false), 0);
  EXPECT_EQ(StatusOfChild(kKept, false), 0);
}

TEST(CloseDescriptorsTest, WithoutCloseRangeThoseThatAreOpen) {
  EXPECT_EQ(StatusOfChild(-1, true), 0);
  EXPECT_EQ(StatusOfChild(kKept, true), 0);
}

}  // namespace
}  // namespace lockstep
