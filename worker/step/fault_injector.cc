// SPDX-License-Identifier: Apache-2.0
#include "worker/step/fault_injector.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/fd.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

// As long as a node of a slow machine may take: much less than any failure_detection.
constexpr absl::Duration kPiece = absl::Milliseconds(10);

// The run's coordinator: who holds a lock on its journal. One that is just being started again is
// waited for. 0: there is none.
int CoordinatorPid() {
  const char* journal = std::getenv(chaos::kJournalVariable);
  if (journal == nullptr) return 0;
  for (int tries = 0; tries < 2000; ++tries) {
    const UniqueFd fd(::open(journal, O_RDONLY | O_CLOEXEC));
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (fd.valid() && ::fcntl(fd.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
      return lock.l_pid;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return 0;
}

// Through the kernel, which also writes where the process itself may not.
void FlipBit(void* at) {
  const UniqueFd memory(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  unsigned char byte = *static_cast<unsigned char*>(at) ^ 1;
  const ssize_t n = ::pwrite(memory.get(), &byte, 1, reinterpret_cast<off_t>(at));
  LS_CHECK_EQ(n, 1) << "cannot write the training state";
}

// Every page is written, so that the memory is the process's until it ends.
void Grow(int64_t mebibytes) {
  const size_t bytes = static_cast<size_t>(mebibytes) << 20;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    LS_LOG_WARNING << "chaos: no " << mebibytes << " MiB of memory to grow by";
    return;
  }
  std::memset(memory, 1, bytes);
}

// Says it to the launcher and goes on: who scales a job does not stop it either.
void AskToScale(int number) {
  const char* pipe = std::getenv(chaos::kScaleVariable);
  if (pipe == nullptr) return;
  const UniqueFd fd(::open(pipe, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string line = absl::StrCat(number, "\n");
  if (fd.valid() && ::write(fd.get(), line.data(), line.size()) > 0) return;
  LS_LOG_WARNING << "chaos: cannot tell the launcher to scale the job";
}

void CarryOut(const chaos::Injection& injection, void* state) {
  switch (injection.action) {
    case chaos::Action::kKill:
      ::kill(::getpid(), SIGKILL);
      break;
    case chaos::Action::kSegv:
      ::signal(SIGSEGV, SIG_DFL);
      ::kill(::getpid(), SIGSEGV);
      break;
    case chaos::Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      return;  // somebody woke it
    case chaos::Action::kFlip:
      if (state != nullptr) FlipBit(state);
      return;
    case chaos::Action::kGrow:
      return Grow(injection.mebibytes);
    case chaos::Action::kAbort:
      std::abort();
    case chaos::Action::kExit:
      ::_exit(injection.exit_code);
    case chaos::Action::kHang:
    case chaos::Action::kSlow:
    case chaos::Action::kScale:
      break;
  }
  while (true) absl::SleepFor(absl::Seconds(1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FaultInjector>> FaultInjector::FromEnvironment(
    int slot, const std::string& run_dir, const std::string& job_id) {
  const char* text = std::getenv(chaos::kVariable);
  if (text == nullptr) return std::unique_ptr<FaultInjector>();
  LS_ASSIGN_OR_RETURN(const std::vector<chaos::Injection> all, chaos::ParseAll(text));
  double factor = 1;
  std::vector<Due> due;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].of_the_job() && all[i].rank != slot) continue;
    if (all[i].action == chaos::Action::kSlow) {
      factor = all[i].factor;
    } else {
      due.push_back({all[i], static_cast<int>(i)});
    }
  }
  if (due.empty() && factor == 1) return std::unique_ptr<FaultInjector>();
  auto injector = std::unique_ptr<FaultInjector>(new FaultInjector(run_dir, job_id, factor));
  injector->due_ = std::move(due);
  return injector;
}

void FaultInjector::At(chaos::Place place, int64_t step) {
  for (const Due& due : due_) {
    if (due.injection.step != step || due.injection.place != place) continue;
    if (due.injection.action == chaos::Action::kScale) {
      if (Mark(due.number, ::getpid())) AskToScale(due.number);
      continue;
    }
    if (!due.injection.coordinator) {
      if (Mark(due.number, ::getpid())) CarryOut(due.injection, state_);
      continue;
    }
    const int pid = CoordinatorPid();
    if (pid > 0 && Mark(due.number, pid)) ::kill(pid, SIGKILL);
  }
}

void FaultInjector::Slow(Clock* clock, absl::Duration time,
                         const std::function<bool()>& cancelled) const {
  absl::Duration rest = time * (factor_ - 1);
  while (rest > absl::ZeroDuration() && !cancelled()) {
    const absl::Duration piece = std::min(rest, kPiece);
    clock->Sleep(piece);
    rest -= piece;
  }
}

bool FaultInjector::Mark(int number, int pid) const {
  ::mkdir(absl::StrCat(run_dir_, "/", chaos::kFolder).c_str(), 0755);
  const std::string file = chaos::MarkFile(run_dir_, job_id_, number);
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) return false;
  const std::string text = absl::StrCat(absl::GetCurrentTimeNanos(), " ", pid, "\n");
  return ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace lockstep::worker
