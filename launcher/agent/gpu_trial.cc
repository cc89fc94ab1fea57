// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/gpu_trial.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/memory_file.h"
#include "proto/offline.pb.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(2);
constexpr size_t kMostAnswer = size_t{1} << 20;

// How the process ended, told by the spawner's thread, which may outlast who waits.
struct End {
  absl::Mutex mu;
  CondVar changed;
  std::optional<Spawner::Exit> exit ABSL_GUARDED_BY(mu);
  std::string failure ABSL_GUARDED_BY(mu);

  bool Await(absl::Duration limit) {
    absl::MutexLock lock(&mu);
    return changed.AwaitFor(&mu, limit, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return exit.has_value() || !failure.empty();
    });
  }
};

absl::StatusOr<UniqueFd> RequestFile() {
  OfflineRequest request;
  request.mutable_doctor();
  return MemoryFile("lockstep-trial", request.SerializeAsString());
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  ::lseek(fd, 0, SEEK_SET);
  while (text.size() < kMostAnswer) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace

std::function<std::string()> GpuTrial(const std::vector<Gpu>& gpus, Spawner* spawner,
                                      const std::string& worker_program) {
  if (gpus.empty() || std::getenv("LOCKSTEP_GPUS") != nullptr) return nullptr;
  return [spawner, worker_program] { return TryGpus(spawner, worker_program, kLimit); };
}

std::string ReadTrial(const std::string& answer, int code, int signal) {
  if (signal != 0) return absl::StrCat("the trial of its GPUs was ended by signal ", signal);
  if (code == 0) return "";
  std::vector<std::string> missing;
  for (const absl::string_view line : absl::StrSplit(answer, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 3 || words[1] != "missing") continue;
    const size_t text = line.find("missing") + std::string("missing").size();
    missing.push_back(absl::StrCat(words[0], ": ", absl::StripAsciiWhitespace(line.substr(text))));
  }
  if (missing.empty()) return absl::StrCat("the trial of its GPUs exited with code ", code);
  return absl::StrCat("its GPUs cannot be used: ", missing.front());
}

std::string TryGpus(Spawner* spawner, const std::string& worker_program, absl::Duration limit) {
  const absl::StatusOr<UniqueFd> request_file = RequestFile();
  const absl::StatusOr<UniqueFd> answer = MemoryFile("lockstep-answer", "");
  if (!request_file.ok() || !answer.ok()) return "no memory to try its GPUs with";
  Spawner::Request request;
  request.argv = {worker_program, "--offline-fd=3"};
  request.stdout_fd = answer->get();
  request.stderr_fd = answer->get();
  request.fds = {request_file->get()};
  const auto end = std::make_shared<End>();
  Spawner::Callbacks callbacks;
  callbacks.on_failed = [end](const Spawner::Failure& failure) {
    absl::MutexLock lock(&end->mu);
    end->failure = std::string(failure.why.message());
    end->changed.NotifyAll();
  };
  callbacks.on_exit = [end](const Spawner::Exit& exit) {
    absl::MutexLock lock(&end->mu);
    end->exit = exit;
    end->changed.NotifyAll();
  };
  const absl::StatusOr<uint64_t> id = spawner->Spawn(request, std::move(callbacks));
  if (!id.ok()) return absl::StrCat("its GPUs cannot be tried: ", id.status().message());
  if (!end->Await(limit)) {
    spawner->Kill(*id, SIGKILL).IgnoreError();
    return absl::StrCat("the trial of its GPUs was not over after ", absl::FormatDuration(limit));
  }
  absl::MutexLock lock(&end->mu);
  if (!end->exit) return absl::StrCat("its GPUs cannot be tried: ", end->failure);
  return ReadTrial(ReadAll(answer->get()), end->exit->code, end->exit->signal);
}

}  // namespace lockstep::launcher
