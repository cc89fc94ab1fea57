// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/join.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/available_cpus.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/log_dates.h"
#include "common/printable.h"
#include "common/service_manager.h"
#include "common/status.h"
#include "launcher/agent/account.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/host.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/verbs/connect.h"

namespace lockstep::launcher {
namespace {

// Why the node leaves, told by other threads.
struct Leaving {
  absl::Mutex mu;
  int signals ABSL_GUARDED_BY(mu) = 0;
  bool restart ABSL_GUARDED_BY(mu) = false;  // the workers wait for the next agent
  std::string failure ABSL_GUARDED_BY(mu);
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return signals > 0 || !failure.empty(); }
  bool Hurried() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return signals > 1 || !failure.empty(); }
  void Fail(const std::string& why) ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (failure.empty()) failure = why;
  }
};

absl::StatusOr<AgentOptions> OptionsOf(const JoinArgs& args, Spawner* spawner) {
  AgentOptions options;
  LS_ASSIGN_OR_RETURN(options.coordinator, ClientOptionsOf(args.coordinator));
  LS_ASSIGN_OR_RETURN(options.worker_program, FindProgram("worker", "LOCKSTEP_WORKER"));
  options.spawner = spawner;
  // A container's limit of processors may be below its GPUs, each of which has a worker.
  options.slots = args.slots.has_value()
                      ? *args.slots
                      : std::max(AvailableCpus(), static_cast<int>(UsableGpus().size()));
  options.labels = args.labels;
  options.runs_dir = args.runs_dir;
  options.state_dir = args.state_dir;
  options.orphan_grace = args.orphan_grace;
  options.leave_grace = args.leave_grace;
  if (args.as_users) LS_RETURN_IF_ERROR(CheckRunsAsUsers());
  options.as_users = args.as_users;
  options.allow_root = args.allow_root;
  if (const char* again = std::getenv("LOCKSTEP_HEALTH_AGAIN")) {
    absl::ParseDuration(again, &options.health_again);
  }
  LS_ASSIGN_OR_RETURN(options.interfaces, InterfaceFilter::Parse(args.interfaces));
  options.on_warning = [](const std::string& text) { LS_LOG_WARNING << text; };
  options.on_connection = [address = options.coordinator.address](bool connected,
                                                                  const std::string& reason) {
    if (connected) {
      LS_LOG_INFO << "connected to the coordinator at " << address;
      TellServiceManager(absl::StrCat("STATUS=connected to ", address));
    } else {
      LS_LOG_WARNING << "no connection to the coordinator at " << address << ": " << reason;
      TellServiceManager(absl::StrCat("STATUS=no connection to ", address));
    }
  };
  return options;
}

}  // namespace

int RunJoin(const JoinArgs& args, Spawner* spawner) {
  const bool ends_container = EndsContainer(OriginOfProcess());
  LogDates();
  Leaving leaving;
  if (const auto filter = InterfaceFilter::Parse(args.interfaces); !filter.ok()) {
    std::cerr << "error: --interfaces: " << Printable(std::string(filter.status().message()))
              << "\n";
    return kExitUsage;
  }
  absl::StatusOr<AgentOptions> options = OptionsOf(args, spawner);
  if (!options.ok()) return Complain(options.status());
  const int slots = options->slots;
  const Limits limits = CurrentLimits();
  absl::Status enough = CheckLimits(limits, /*workers=*/1, /*local_run=*/false);
  enough.Update(CheckOpenFiles(slots, limits.open_files));
  if (!enough.ok()) return Complain(enough);
  const bool keeps = !args.leave_on_sigterm && !ends_container;
  StopSignals signals([&leaving, keeps](int count, int signal) {
    absl::MutexLock lock(&leaving.mu);
    leaving.signals = count;
    if (count == 1) leaving.restart = keeps && signal == SIGTERM;
  });
  spawner->SetOnLost([&leaving] { leaving.Fail("the spawner process was killed"); });
  const auto ended = [&leaving] {
    absl::MutexLock lock(&leaving.mu);
    if (leaving.failure.empty()) return kExitInterrupted;
    return Complain(absl::InternalError(leaving.failure));
  };
  // The next agent is to have the state folder now; a thread that a disk keeps ends with the
  // process.
  options->on_hung_disk = [&ended](const std::string& what) {
    LS_LOG_WARNING << what << ": ends without waiting for that";
    ::_exit(ended());
  };
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(*std::move(options));
  if (!agent.ok()) return Complain(agent.status());
  LS_LOG_INFO << "this host offers " << slots << " worker slots";
  if (!args.as_users && ::geteuid() == 0) {
    LS_LOG_INFO << "jobs run as root here, whoever submits them; --as-users runs them as their "
                   "users";
  }
  TellServiceManager("READY=1");  // also while the coordinator is away
  bool hurried, restart, failed;
  {
    absl::MutexLock lock(&leaving.mu);
    leaving.mu.Await(absl::Condition(&leaving, &Leaving::Wanted));
    restart = leaving.restart;
    hurried = leaving.Hurried();
    failed = !leaving.failure.empty();
  }
  TellServiceManager("STOPPING=1");
  if (restart) {
    LS_LOG_INFO << "ends; workers go on, and wait " << absl::FormatDuration(args.orphan_grace)
                << " for the next agent";
    (*agent)->Detach();
    agent->reset();
    return kExitInterrupted;
  }
  // Supervisors have the workers, and need no spawner.
  if (failed) (*agent)->Detach();
  if (!hurried) {
    LS_LOG_INFO << "leaving: workers hand over to other nodes or save, for "
                << absl::FormatDuration(args.leave_grace)
                << " at most, then get their grace (another signal kills them)";
    (*agent)->Stop(/*kill=*/false);
    while (!hurried && !(*agent)->WaitStopped(absl::Milliseconds(50))) {
      absl::MutexLock lock(&leaving.mu);
      hurried = leaving.Hurried();
    }
  }
  agent->reset();
  return ended();
}

}  // namespace lockstep::launcher
