// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/remote_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/status.h"
#include "common/thread.h"
#include "launcher/agent/output.h"
#include "launcher/local_run/ordered_guest.h"

namespace lockstep::launcher {
namespace {

constexpr int kSshFailed = 255;
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
constexpr int kUsage = 2;
// Lines that came with the end are read for so long at most.
constexpr absl::Duration kLastWords = absl::Milliseconds(100);

absl::Status MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for a host of the run");
  read_end->reset(fds[0]);
  write_end->reset(fds[1]);
  return absl::OkStatus();
}

// Reads what is there. False at the stream's end.
bool ReadLines(int fd, LineSplitter* splitter, std::vector<std::string>* lines) {
  char buffer[4096];
  const ssize_t n = ::read(fd, buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) {
    splitter->Finish(lines);
    return false;
  }
  splitter->Feed(std::string_view(buffer, static_cast<size_t>(n)), lines);
  return true;
}

// Returns whether a command, such as "ssh -p 2222", is ssh itself.
bool IsSsh(const std::string& command) {
  const std::vector<std::string> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  return !words.empty() && (words[0] == "ssh" || absl::EndsWith(words[0], "/ssh"));
}

}  // namespace

absl::Status WhyNoPart(const std::string& host, const std::string& command,
                       const std::string& launcher, const RemoteEnd& end) {
  const std::string said = end.last_line.empty() ? "" : absl::StrCat(": ", end.last_line);
  if (end.signal != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "host ", host, ": the command that enters it was killed by signal ", end.signal, said));
  }
  switch (end.code) {
    case kSshFailed:
      return absl::FailedPreconditionError(absl::StrCat(
          "host ", host, " cannot be entered", said, "; '", command,
          IsSsh(command) ? " -o BatchMode=yes " : " ", host,
          " true' has to work without a question (a key in ssh-agent, the host in known_hosts)"));
    case kNotFound:
    case kNotExecutable:
      return absl::FailedPreconditionError(
          absl::StrCat("host ", host, " has no launcher that can be run at ", launcher, said,
                       "; install the same version there, or name its place with --launcher"));
    case kUsage:
      return absl::FailedPreconditionError(absl::StrCat(
          "host ", host, ": the program at ", launcher, " is no launcher of this version", said,
          "; install the same one there, or name its place with --launcher"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("host ", host, " takes no part", said, " (exit code ", end.code, ")"));
  }
}

std::vector<std::string> EnterCommand(const std::string& command) {
  std::vector<std::string> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  if (!IsSsh(command)) return words;
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=4"}) {
    words.insert(words.end(), {"-o", option});
  }
  words.insert(words.end(), {"-T", "-x", "-a"});
  return words;
}

std::string ShellWord(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// What the threads of the parts and their owner share; outlives the owner, because the spawner may
// say of an end after it.
struct RemoteHosts::Shared {
  Callbacks callbacks;
  absl::Mutex mu;
  CondVar changed;
  size_t ended ABSL_GUARDED_BY(mu) = 0;
  bool closing ABSL_GUARDED_BY(mu) = false;
};

struct RemoteHosts::Entered {
  // The exit, which the spawner's thread tells the reader's.
  struct Exit {
    absl::Mutex mu;
    bool known ABSL_GUARDED_BY(mu) = false;
    Spawner::Exit exit ABSL_GUARDED_BY(mu);
    std::string failed ABSL_GUARDED_BY(mu);
    UniqueFd event;
    void Set(const Spawner::Exit& how, const std::string& why) {
      {
        absl::MutexLock lock(&mu);
        known = true;
        exit = how;
        failed = why;
      }
      const uint64_t one = 1;
      (void)!::write(event.get(), &one, sizeof(one));
    }
  };

  Spawner* spawner = nullptr;
  uint64_t id = 0;
  UniqueFd input;   // to it; under Shared::mu
  UniqueFd output;  // from its stdout
  UniqueFd errors;
  std::shared_ptr<Exit> exit;
  Thread reader;

  RemoteEnd Read(const std::function<void(const std::string&)>& on_line);
};

RemoteEnd RemoteHosts::Entered::Read(const std::function<void(const std::string&)>& on_line) {
  RemoteEnd end;
  LineSplitter splitters[2];
  const int fds[2] = {output.get(), errors.get()};
  bool open[2] = {true, true};
  bool ended = false;
  while (!ended || open[0] || open[1]) {
    pollfd polled[3] = {{exit->event.get(), static_cast<short>(ended ? 0 : POLLIN), 0},
                        {open[0] ? fds[0] : -1, POLLIN, 0},
                        {open[1] ? fds[1] : -1, POLLIN, 0}};
    // Somebody else may hold the other end after the exit, as ssh's master process does.
    const int patience = ended ? static_cast<int>(absl::ToInt64Milliseconds(kLastWords)) : -1;
    const int ready = ::poll(polled, 3, patience);
    if (ready == 0) break;
    if (ready < 0) continue;
    for (int stream = 0; stream < 2; ++stream) {
      if (polled[stream + 1].revents == 0) continue;
      std::vector<std::string> lines;
      open[stream] = ReadLines(fds[stream], &splitters[stream], &lines);
      for (const std::string& line : lines) {
        if (stream == 0) {
          end.was_ready |= line == kGuestReady;
        } else {
          end.last_line = line;
          on_line(line);
        }
      }
    }
    ended |= polled[0].revents != 0;
  }
  absl::MutexLock lock(&exit->mu);
  end.code = exit->failed.empty() ? exit->exit.code : kNotFound;
  end.signal = exit->exit.signal;
  if (!exit->failed.empty()) end.last_line = exit->failed;
  return end;
}

absl::Status RemoteHosts::Enter(Spawner* spawner, size_t number, const Part& part) {
  auto entered = std::make_unique<Entered>();
  entered->spawner = spawner;
  entered->exit = std::make_shared<Entered::Exit>();
  entered->exit->event.reset(::eventfd(0, EFD_CLOEXEC));
  if (!entered->exit->event.valid()) return ErrnoStatus(errno, "eventfd for a host of the run");
  UniqueFd input, output, errors;
  LS_RETURN_IF_ERROR(MakePipe(&input, &entered->input));
  LS_RETURN_IF_ERROR(MakePipe(&entered->output, &output));
  LS_RETURN_IF_ERROR(MakePipe(&entered->errors, &errors));
  // The pipe takes it at once, so that a host which reads nothing holds nobody up.
  ::fcntl(entered->input.get(), F_SETFL, O_NONBLOCK);
  const ssize_t written = ::write(entered->input.get(), part.input.data(), part.input.size());
  if (written != static_cast<ssize_t>(part.input.size())) {
    return absl::InternalError("the order for a host does not fit into its pipe");
  }
  Spawner::Request request;
  // The spawner gives no standard input: a shell puts it there.
  request.argv = {"/bin/sh", "-c", "exec \"$@\" <&3 3<&-", "sh"};
  request.argv.insert(request.argv.end(), part.argv.begin(), part.argv.end());
  request.stdout_fd = output.get();
  request.stderr_fd = errors.get();
  request.fds = {input.get()};
  Spawner::Callbacks told;
  told.on_exit = [exit = entered->exit](const Spawner::Exit& how) { exit->Set(how, ""); };
  told.on_failed = [exit = entered->exit](const Spawner::Failure& failure) {
    exit->Set({}, std::string(failure.why.message()));
  };
  LS_ASSIGN_OR_RETURN(entered->id, spawner->Spawn(request, std::move(told)));
  Entered* const own = entered.get();
  own->reader = Thread("host", [shared = shared_, own, number] {
    const RemoteEnd end =
        own->Read([&](const std::string& line) { shared->callbacks.on_line(number, line); });
    bool closing;
    {
      absl::MutexLock lock(&shared->mu);
      closing = shared->closing;
    }
    if (!closing) shared->callbacks.on_end(number, end);
    {
      absl::MutexLock lock(&shared->mu);
      ++shared->ended;
    }
    shared->changed.NotifyAll();
  });
  entered_.push_back(std::move(entered));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RemoteHosts>> RemoteHosts::Start(Spawner* spawner,
                                                                const std::vector<Part>& parts,
                                                                Callbacks callbacks) {
  std::unique_ptr<RemoteHosts> hosts(new RemoteHosts());
  hosts->shared_ = std::make_shared<Shared>();
  hosts->shared_->callbacks = std::move(callbacks);
  for (size_t i = 0; i < parts.size(); ++i) {
    LS_RETURN_IF_ERROR(hosts->Enter(spawner, i, parts[i]));
  }
  return hosts;
}

RemoteHosts::~RemoteHosts() {
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->closing = true;
  }
  Release();
  for (const auto& entered : entered_) entered->spawner->Kill(entered->id, SIGKILL).IgnoreError();
  for (const auto& entered : entered_) {
    if (entered->spawner->lost()) entered->exit->Set({}, "");  // nobody else says so any more
    entered->reader.Join();
  }
}

void RemoteHosts::Release() {
  absl::MutexLock lock(&shared_->mu);
  for (const auto& entered : entered_) entered->input.reset();
}

bool RemoteHosts::AwaitEnd(absl::Duration timeout) {
  absl::MutexLock lock(&shared_->mu);
  const size_t all = entered_.size();
  const auto over = [this, all]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mu) {
    return shared_->ended == all;
  };
  return shared_->changed.AwaitFor(&shared_->mu, timeout, over);
}

}  // namespace lockstep::launcher
