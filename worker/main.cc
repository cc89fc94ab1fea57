// SPDX-License-Identifier: Apache-2.0
// The worker program: one process for each device, started by an agent.
//   worker --bootstrap-fd=N [--life-fd=M]
// It trains, or keeps one rank of a job with `run`. N holds a serialised WorkerBootstrap, M the
// agent's life page. A verb that needs the engine for one answer starts it as
//   worker --offline-fd=N [--asker=PID]
// where N holds a serialised OfflineRequest. It ends with the process PID that asks.
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/inherited_signals.h"
#include "common/life.h"
#include "common/log.h"
#include "common/mutex_checks.h"
#include "common/openssl_at_exit.h"
#include "common/standard_descriptors.h"
#include "engine/cuda/device.h"
#include "engine/engine.h"
#include "engine/exec/kernel_choice.h"
#include "google/protobuf/message_lite.h"
#include "proto/coordinator.pb.h"
#include "proto/offline.pb.h"
#include "worker/command/keeper.h"
#include "worker/commands/offline.h"
#include "worker/control/farewell_watch.h"
#include "worker/setup/cpu_binding.h"
#include "worker/setup/device_choice.h"
#include "worker/setup/nccl_settings.h"
#include "worker/setup/tuning_files.h"
#include "worker/worker.h"

namespace {

constexpr int kUsage = 2;
constexpr int kAskerGone = 128 + SIGTERM;

// The value of "--name=number", or -1.
int NumberFlag(int argc, char** argv, std::string_view name) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    int value = -1;
    if (argument.substr(0, name.size()) == name && argument.substr(name.size(), 1) == "=" &&
        absl::SimpleAtoi(argv[i] + name.size() + 1, &value)) {
      return value;
    }
  }
  return -1;
}

bool ReadMessage(int fd, google::protobuf::MessageLite* message) {
  std::string bytes;
  char buffer[1 << 16];
  ::lseek(fd, 0, SEEK_SET);  // fails on a pipe, which is read from where it stands
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) return message->ParseFromString(bytes);
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

// Returns `code`; ends the process with it where a GPU was given up.
int End(int code) {
  if (!lockstep::engine::cuda::Device::AnyIsAbandoned()) return code;
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::TakeStandardDescriptors();
  lockstep::ResetInheritedSignals();
  lockstep::SkipMutexChecksInRelease();
  lockstep::KeepOpenSslUntilTheEnd();
  ::prctl(PR_SET_NAME, "worker");  // started from a descriptor it would be called by its number
  ::signal(SIGXFSZ, SIG_IGN);      // a file at its limit (ulimit -f) is an error of the write
  const lockstep::UniqueFd offline_fd(NumberFlag(argc, argv, "--offline-fd"));
  lockstep::OfflineRequest request;
  if (offline_fd.valid() && ReadMessage(offline_fd.get(), &request)) {
    if (const int asker = NumberFlag(argc, argv, "--asker"); asker > 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::kill(asker, 0) != 0 && errno == ESRCH) return kAskerGone;  // too early for the signal
    }
    lockstep::engine::PinNumerics(lockstep::worker::ThreadsOf(request));
    lockstep::engine::MeasureKernels(lockstep::worker::KernelFile());
    return End(lockstep::worker::RunOffline(request));
  }
  const lockstep::UniqueFd bootstrap_fd(NumberFlag(argc, argv, "--bootstrap-fd"));
  lockstep::UniqueFd life_fd(NumberFlag(argc, argv, "--life-fd"));
  lockstep::WorkerBootstrap bootstrap;
  if (!bootstrap_fd.valid() || !ReadMessage(bootstrap_fd.get(), &bootstrap)) {
    std::fprintf(stderr,
                 "worker: is started by the launcher, not by hand; run: launcher job.yaml\n");
    return kUsage;
  }
  lockstep::worker::FarewellWatch::Block();
  std::unique_ptr<lockstep::LifePage> life;
  if (life_fd.valid()) {
    auto opened = lockstep::LifePage::Open(std::move(life_fd));
    const absl::Status taken =
        opened.ok() ? (*opened)->Take(bootstrap.life_slot()) : opened.status();
    if (!taken.ok()) {
      LS_LOG_ERROR << "the life page cannot be used: " << taken.message();
      return 1;
    }
    life = *std::move(opened);
  }
  if (bootstrap.assignment().spec().has_run()) {
    lockstep::worker::RunKeeper(bootstrap, lockstep::Clock::Real());
  }
  lockstep::worker::ClaimDevice(bootstrap.assignment());
  if (bootstrap.assignment().device().kind() == "cuda") {
    lockstep::worker::SetNcclEnvironment(bootstrap.assignment().spec().nccl(),
                                         bootstrap.assignment().device().shared());
    lockstep::worker::StayNearDevice(bootstrap.assignment());
  }
  lockstep::engine::PinNumerics(bootstrap.assignment().spec().resources().cpus_per_proc());
  lockstep::engine::MeasureKernels(lockstep::worker::KernelFile());
  return End(lockstep::worker::RunWorker(bootstrap, life.get(), lockstep::Clock::Real()));
}
