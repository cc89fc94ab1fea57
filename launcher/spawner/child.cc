// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/child.h"

#include <fcntl.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "common/close_descriptors.h"
#include "launcher/spawner/process_starter.h"

extern char** environ;

namespace lockstep::launcher {
namespace {

// Sources are moved above every target number, so that no dup2 overwrites one that is still needed.
constexpr int kFirstSourceFd = 64;

// What the child needs, prepared before the vfork: between vfork and exec it shares the spawner's
// memory and makes system calls only.
struct Setup {
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const char* cwd = nullptr;
  const int* fds = nullptr;
  int fd_count = 0;
  int first_target = 1;
  int program = -1;
  bool detached = false;
  pid_t parent = 0;
  int64_t uid = -1;
  gid_t gid = 0;
  const uint32_t* groups = nullptr;
  size_t group_count = 0;
  volatile int error_number = 0;
  const char* volatile failed_call = "";
};

[[noreturn]] void Fail(Setup* setup, const char* call) {
  setup->error_number = errno;
  setup->failed_call = call;
  ::_exit(127);
}

// System calls as they are: the library's would change the spawner's idea of itself, whose memory
// this is.
void BecomeUser(Setup* setup) {
  if (::syscall(SYS_setgroups, setup->group_count, setup->groups) != 0) Fail(setup, "setgroups");
  if (::syscall(SYS_setresgid, setup->gid, setup->gid, setup->gid) != 0) Fail(setup, "setgid");
  const uid_t uid = static_cast<uid_t>(setup->uid);
  if (::syscall(SYS_setresuid, uid, uid, uid) != 0) Fail(setup, "setuid");
  // The keys of the spawner's session are neither this user's nor those of other users' jobs. A
  // kernel without keys says ENOSYS, a filter of system calls either of the two: it keeps the child
  // from them as well.
  if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) < 0 && errno != ENOSYS &&
      errno != EPERM) {
    Fail(setup, "keyctl(KEYCTL_JOIN_SESSION_KEYRING)");
  }
}

void BelongToParent(Setup* setup) {
  if (::setpgid(0, 0) != 0) Fail(setup, "setpgid");
  if (setup->uid >= 0) BecomeUser(setup);
  // After the change of user, which takes it back.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(setup, "prctl");
  if (::getppid() != setup->parent) ::_exit(127);  // it died before the line above
}

[[noreturn]] void ChildMain(Setup* setup) {
  if (!setup->detached) {
    BelongToParent(setup);
  } else if (::setsid() < 0) {
    Fail(setup, "setsid");
  }
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  // A write beyond the limit of file sizes is an error that names the file, not a silent death.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
  for (int i = 0; i < setup->fd_count; ++i) {
    if (::dup2(setup->fds[i], setup->first_target + i) < 0) Fail(setup, "dup2");
  }
  // All but the program, which the exec closes.
  CloseDescriptors(std::max(3, setup->first_target + setup->fd_count), setup->program);
  if (setup->cwd != nullptr && ::chdir(setup->cwd) != 0) Fail(setup, kEnterFolder);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (setup->program < 0) {
    ::execvpe(setup->argv[0], setup->argv, setup->envp);
  } else {
    ::syscall(SYS_execveat, setup->program, "", setup->argv, setup->envp, AT_EMPTY_PATH);
  }
  Fail(setup, "exec");
}

// In a function of its own: nothing of the caller's frame may change between the two returns.
__attribute__((noinline)) pid_t VforkChild(Setup* setup) {
  const pid_t pid = ::vfork();
  if (pid == 0) ChildMain(setup);
  return pid;
}

bool Names(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
}

// This process's environment (the launcher's at its start) with changes; `set` outlives it.
std::vector<char*> Environment(const std::vector<std::string>& set,
                               const std::vector<std::string>& unset) {
  std::vector<char*> envp;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& with : set) {
      replaced |= Names(*entry, std::string_view(with).substr(0, with.find('=')));
    }
    for (const std::string& name : unset) replaced |= Names(*entry, name);
    if (!replaced) envp.push_back(*entry);
  }
  for (const std::string& with : set) envp.push_back(const_cast<char*>(with.c_str()));
  envp.push_back(nullptr);
  return envp;
}

// Moves the descriptors up and starts what `setup` says.
ChildStart Start(Setup& setup, const std::vector<std::string>& arguments, std::vector<UniqueFd> fds,
                 int program) {
  std::vector<UniqueFd> moved;
  std::vector<int> sources;
  if (program >= 0) {
    moved.emplace_back(::fcntl(program, F_DUPFD_CLOEXEC, kFirstSourceFd));
    if (!moved.back().valid()) return {.error_number = errno, .failed_call = "fcntl(F_DUPFD)"};
    setup.program = moved.back().get();
  }
  for (UniqueFd& fd : fds) {
    const int source = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstSourceFd);
    if (source < 0) return {.error_number = errno, .failed_call = "fcntl(F_DUPFD)"};
    moved.emplace_back(source);
    sources.push_back(source);
    fd.reset();
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  setup.argv = argv.data();
  setup.fds = sources.data();
  setup.fd_count = static_cast<int>(sources.size());
  const pid_t pid = VforkChild(&setup);
  if (pid < 0) return {.error_number = errno, .failed_call = "vfork"};
  if (setup.error_number != 0) {
    ::waitpid(pid, nullptr, 0);
    return {.error_number = setup.error_number, .failed_call = setup.failed_call};
  }
  return {.pid = pid};
}

}  // namespace

const std::vector<std::string>& AgentVariables() {
  static const auto* const names = new std::vector<std::string>{
      "LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"};
  return *names;
}

const std::vector<std::string>& TokenVariables() {
  static const auto* const names =
      new std::vector<std::string>{"LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE"};
  return *names;
}

ChildStart StartChild(const SpawnerCommand& command, std::vector<UniqueFd> fds, int program) {
  const std::vector<char*> envp = Environment(command.set_env, command.unset_env);
  Setup setup;
  setup.envp = envp.data();
  setup.cwd = command.cwd.empty() ? nullptr : command.cwd.c_str();
  setup.first_target = command.keep_output ? 3 : 1;
  setup.parent = ::getpid();
  setup.uid = command.uid;
  setup.gid = command.gid;
  setup.groups = command.groups.data();
  setup.group_count = command.groups.size();
  return Start(setup, command.argv, std::move(fds), program);
}

ChildStart StartDetached(int program, const std::vector<std::string>& argv,
                         std::vector<UniqueFd> fds) {
  const std::vector<char*> envp = Environment({}, AgentVariables());
  Setup setup;
  setup.envp = envp.data();
  setup.first_target = 0;
  setup.detached = true;
  return Start(setup, argv, std::move(fds), program);
}

}  // namespace lockstep::launcher
