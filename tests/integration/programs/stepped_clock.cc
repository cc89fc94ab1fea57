// SPDX-License-Identifier: Apache-2.0
// Preloaded into programs, sets their wall clock while they run: what they are told of
// CLOCK_REALTIME, and until when futexes sleep that wait for a time of it, is off by the
// nanoseconds that the file in LOCKSTEP_STEPPED_CLOCK holds now. As when the machine's clock is
// set, a wait that has begun ends at the new clock's time. CLOCK_MONOTONIC stays what it is.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Between two looks of a sleeper at the clock.
constexpr int64_t kSlice = 10'000'000;

using Offset = std::atomic<int64_t>;
Offset none{0};
std::atomic<Offset*> offset{&none};

__attribute__((constructor)) void MapOffset() {
  const char* path = ::getenv("LOCKSTEP_STEPPED_CLOCK");
  if (path == nullptr) return;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* memory = ::mmap(nullptr, sizeof(Offset), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory != MAP_FAILED) offset.store(static_cast<Offset*>(memory));
}

int64_t Now() { return offset.load(std::memory_order_relaxed)->load(std::memory_order_relaxed); }
int64_t Nanos(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec TimeOf(int64_t nanos) {
  const int64_t seconds = nanos / kSecond - (nanos % kSecond < 0 ? 1 : 0);
  return {static_cast<time_t>(seconds), static_cast<long>(nanos - seconds * kSecond)};
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int RealTime(clockid_t clock, timespec* time) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  return next(clock, time);
}

long RealSyscall(long number, const long (&a)[6]) {
  static auto* const next = Next<long(long, ...)>("syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// A futex that waits until a time of the wall clock.
long WaitUntil(const long (&given)[6]) {
  const int64_t until = Nanos(*reinterpret_cast<const timespec*>(given[3]));
  while (true) {
    timespec now;
    RealTime(CLOCK_REALTIME, &now);
    const timespec slice = TimeOf(std::min(until - Now(), Nanos(now) + kSlice));
    const long args[6] = {given[0], given[1], given[2], reinterpret_cast<long>(&slice),
                          given[4], given[5]};
    const long result = RealSyscall(SYS_futex, args);
    if (result == 0 || errno != ETIMEDOUT) return result;
    RealTime(CLOCK_REALTIME, &now);
    if (Nanos(now) + Now() >= until) {
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = RealTime(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *time = TimeOf(Nanos(*time) + Now());
  }
  return result;
}

int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* time) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (time != nullptr) *time = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long args[6];
  for (long& arg : args) arg = va_arg(list, long);
  va_end(list);
  const bool until_wall_time = number == SYS_futex && (args[1] & FUTEX_CLOCK_REALTIME) != 0 &&
                               (args[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && args[3] != 0;
  return until_wall_time ? WaitUntil(args) : RealSyscall(number, args);
}

}  // extern "C"
