// SPDX-License-Identifier: Apache-2.0
#include "worker/command/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/close_descriptors.h"
#include "common/descendants.h"
#include "common/fd.h"
#include "common/status.h"

extern char** environ;

namespace lockstep::worker {
namespace {

constexpr absl::Duration kKillTimeout = absl::Seconds(10);
// What the child leaves open for exec to close: the pipe that tells of its failure.
constexpr int kTellFd = 3;

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::vector<char*> Environment(const std::vector<std::string>& set,
                               const std::vector<std::string>& unset) {
  std::vector<char*> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = NameOf(*entry);
    const bool replaced =
        std::any_of(set.begin(), set.end(),
                    [&](const std::string& other) { return NameOf(other) == name; }) ||
        std::find(unset.begin(), unset.end(), name) != unset.end();
    if (!replaced) all.push_back(*entry);
  }
  for (const std::string& entry : set) all.push_back(const_cast<char*>(entry.c_str()));
  all.push_back(nullptr);
  return all;
}

// After a fork of a process with threads: system calls alone.
[[noreturn]] void RunChild(char* const* argv, char* const* envp, int tell, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  ::dup2(tell, kTellFd);
  ::fcntl(kTellFd, F_SETFD, FD_CLOEXEC);
  CloseDescriptors(kTellFd + 1);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvpe(argv[0], argv, envp);
  const int why = errno;
  (void)!::write(kTellFd, &why, sizeof(why));
  ::_exit(127);
}

}  // namespace

void RankProcess::BecomeReaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

absl::Status RankProcess::Start(const std::vector<std::string>& argv,
                                const std::vector<std::string>& set_env,
                                const std::vector<std::string>& unset_env) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const std::vector<char*> envp = Environment(set_env, unset_env);
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot make a pipe");
  const UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "cannot fork for the command");
  if (pid == 0) RunChild(words.data(), envp.data(), write_end.get(), parent);
  ::setpgid(pid, pid);  // it may be signalled before it has done so itself
  write_end.reset();
  int why = 0;
  ssize_t n;
  do {
    n = ::read(read_end.get(), &why, sizeof(why));
  } while (n < 0 && errno == EINTR);
  if (n == sizeof(why)) {
    ::waitpid(pid, nullptr, 0);
    return ErrnoStatus(why, absl::StrCat("cannot run '", argv[0], "'"));
  }
  pid_ = pid;
  terminated_ = false;
  end_.reset();
  peak_rss_bytes_ = 0;
  return absl::OkStatus();
}

void RankProcess::Terminate() {
  // Once the command was reaped, its number may be another group's.
  if (pid_ == 0 || end_.has_value()) return;
  terminated_ = true;
  ::killpg(pid_, SIGTERM);
}

void RankProcess::Kill() {
  terminated_ = false;
  if (pid_ > 0 && !end_.has_value()) ::killpg(pid_, SIGKILL);
}

// What left the group was not told to end, so nobody waits for it.
bool RankProcess::GroupSaves() const { return terminated_ && ::killpg(pid_, 0) == 0; }

std::optional<ProcessEnd> RankProcess::Reap() {
  int status = 0;
  rusage usage{};
  // All others were adopted, and nobody asks how they ended.
  while (const pid_t pid = ::wait4(-1, &status, WNOHANG, &usage)) {
    if (pid < 0) break;
    peak_rss_bytes_ = std::max(peak_rss_bytes_, int64_t{usage.ru_maxrss} * 1024);
    if (pid != pid_ || end_.has_value()) continue;
    end_ = WIFSIGNALED(status) ? ProcessEnd{.signal = WTERMSIG(status)}
                               : ProcessEnd{.code = WEXITSTATUS(status)};
  }
  if (!end_.has_value() || GroupSaves()) return std::nullopt;
  KillDescendants(kKillTimeout);
  pid_ = 0;
  return std::exchange(end_, std::nullopt);
}

void RankProcess::KillAll() {
  Kill();
  KillDescendants(kKillTimeout);
  pid_ = 0;
  end_.reset();
}

void EndLike(const ProcessEnd& end) {
  if (end.signal != 0) {
    const rlimit none{};  // the command has left its core, if any
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(end.signal, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, end.signal);
    ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    ::kill(::getpid(), end.signal);
    ::_exit(128 + end.signal);  // a signal that ends nobody
  }
  ::_exit(end.code);
}

}  // namespace lockstep::worker
