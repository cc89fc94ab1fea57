// SPDX-License-Identifier: Apache-2.0
// The agent's workers: how they start and end, and what they say.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/farewell.h"
#include "common/limits.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/package_store.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/devices.h"
#include "launcher/agent/run_folder.h"

namespace lockstep::launcher {
namespace {

// Who hears of an end finds the whole log, unless the disk takes longer than this. Of a failure,
// after which others go on only then, it is told sooner.
constexpr absl::Duration kLogWritten = absl::Milliseconds(900);
constexpr absl::Duration kLogOfFailed = absl::Milliseconds(100);
// The exit code of a job for which this host had no room: on its disk, in its memory, or among its
// processes and open files (docs/exit_codes.md).
constexpr int kNoRoom = 5;

}  // namespace

void AgentImpl::Do(const agent_action::Start& action) {
  WorkerAssignment assignment = action.assignment;
  const absl::Status checked = CheckAssignment(assignment);
  if (checked.ok()) {
    assignment.set_run_dir(
        ChosenRunFolder(options_.run_dir, options_.runs_dir, assignment.run_dir()));
  }
  FindDataAddresses(action.seen_address);
  auto owned = std::make_unique<WorkerProcess>(&node_, assignment, next_worker_id_++,
                                               WorkerProcess::Origin{action.cluster, action.epoch});
  WorkerProcess* worker = owned.get();
  workers_[assignment.incarnation()] = std::move(owned);
  if (!checked.ok()) return StartNow(worker, checked);
  if (coordinator::PackageOf(assignment.spec().workdir()).empty()) return StartWhenWell(worker);
  preparing_.insert(worker->incarnation());
  workdirs_->Prepare(worker->assignment(),
                     [this, incarnation = worker->incarnation()](const absl::Status& made) {
                       loop_->Post([=, this] { OnWorkdir(incarnation, made); });
                     });
}

void AgentImpl::OnWorkdir(const std::string& incarnation, const absl::Status& made) {
  if (preparing_.erase(incarnation) == 0) return;  // it was ended meanwhile
  WorkerProcess* const worker = workers_.at(incarnation).get();
  if (!made.ok()) return OnStartFailed(worker, made);
  StartWhenWell(worker);
}

void AgentImpl::StartWhenWell(WorkerProcess* worker) {
  if (!AwaitsLook(*worker)) StartNow(worker, absl::OkStatus());
}

void AgentImpl::StartNow(WorkerProcess* worker, const absl::Status& checked) {
  const absl::Status can = checked.ok() ? CheckStart(*worker) : checked;
  if (!can.ok()) return OnStartFailed(worker, can);
  const std::string incarnation = worker->incarnation();
  opening_.insert(incarnation);
  worker->OpenLog([this, incarnation](const WorkerProcess::Log& log) {
    loop_->Post([=, this] { OnLogOpened(incarnation, log); });
  });
}

void AgentImpl::OnLogOpened(const std::string& incarnation, const WorkerProcess::Log& log) {
  if (opening_.erase(incarnation) == 0) return;  // it was ended meanwhile
  WorkerProcess* const worker = workers_.at(incarnation).get();
  if (absl::Status started = StartWorker(worker, log); !started.ok()) {
    OnStartFailed(worker, started);
  }
}

std::shared_ptr<RunDisk> AgentImpl::DiskOf(const std::string& job_id) {
  std::shared_ptr<RunDisk>& disk = disks_[job_id];
  if (disk == nullptr) disk = std::make_shared<RunDisk>();
  return disk;
}

void AgentImpl::LookAtDisks() {
  for (const auto& entry : disks_) {
    const std::string& job_id = entry.first;
    const RunDisk& disk = *entry.second;
    const bool stood = standing_disks_.contains(job_id);
    if (stood ? !disk.keeps_up() : !disk.stands(RunDisk::kPatience)) continue;
    const auto worker = std::find_if(workers_.begin(), workers_.end(), [&](const auto& other) {
      return other.second->assignment().job_id() == job_id;
    });
    const std::string folder =
        worker == workers_.end() ? ""
                                 : absl::StrCat(" (", RunFolder(worker->second->assignment()), ")");
    const std::string of_job = absl::StrCat("the disk with the run of job ", job_id, folder);
    if (stood) {
      standing_disks_.erase(job_id);
      Warn(absl::StrCat(of_job, " answers again"));
      continue;
    }
    standing_disks_.insert(job_id);
    const std::string hangs =
        absl::StrCat(of_job, " has not answered for ", absl::FormatDuration(RunDisk::kPatience));
    Warn(absl::StrCat(hangs, ": the job's starts and logs wait for it"));
    TellOfWait(job_id, hangs);
  }
}

void AgentImpl::TellOfWait(const std::string& job_id, const std::string& why) {
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->ended || worker->pid > 0) continue;
    if (!job_id.empty() && worker->assignment().job_id() != job_id) continue;
    OnLines(worker.get(), /*is_stderr=*/true,
            {absl::StrCat("lockstep: this worker is not started yet: ", why)});
  }
}

bool AgentImpl::AwaitsLook(const WorkerProcess& worker) {
  if (health_ == nullptr) return false;
  const std::string& job_id = worker.assignment().job_id();
  const bool others_run = std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const WorkerProcess& other = *entry.second;
    return other.pid > 0 && !other.ended && other.assignment().job_id() == job_id;
  });
  const StartGate::Answer answer = gate_.Add(job_id, worker.incarnation(), others_run);
  if (answer != StartGate::Answer::kAsk) return answer == StartGate::Answer::kWait;
  health_->Ask([this, job_id, folder = RunFolder(worker.assignment())](const std::string& problem) {
    loop_->Post([=, this] {
      problem.empty() ? LookAtRun(job_id, folder) : OnLooked(job_id, problem, /*of_node=*/true);
    });
  });
  return true;
}

void AgentImpl::LookAtRun(const std::string& job_id, const std::string& folder) {
  DiskOf(job_id)->Do([this, job_id, folder] {
    const std::string problem = options_.examine_run_disk(folder);
    loop_->Post([=, this] { OnLooked(job_id, problem, /*of_node=*/false); });
  });
}

void AgentImpl::OnLooked(const std::string& job_id, const std::string& problem, bool of_node) {
  for (const std::string& incarnation : gate_.Open(job_id)) {
    const auto found = workers_.find(incarnation);
    if (found == workers_.end() || found->second->ended) continue;
    if (problem.empty()) {
      StartNow(found->second.get(), absl::OkStatus());
    } else {
      OnStartFailed(found->second.get(), absl::UnavailableError(problem), of_node);
    }
  }
}

// Anew for each worker: networks come and go.
void AgentImpl::FindDataAddresses(const std::string& seen) {
  // Of several coordinators any one: all are reached the same way, or the coordinator's word
  // counts.
  const std::string address = coordinator::AddressesOf(options_.coordinator.address).front();
  if (!coordinator::IsTcpAddress(address)) {
    if (options_.private_agent) return;
    // All agents of a Unix socket are on this machine.
    if (options_.interfaces.empty()) {
      node_.data_addresses = {"127.0.0.1"};
      return;
    }
  }
  node_.data_addresses =
      ChooseDataAddresses(SystemAddresses(), options_.interfaces, OwnEndTowards(address), seen);
  if (!node_.data_addresses.empty() || options_.interfaces.empty()) return;
  WarnOnce(
      "no address of this host is among --interfaces: its workers join no job of several hosts");
}

absl::Status AgentImpl::CheckStart(const WorkerProcess& worker) {
  LS_RETURN_IF_ERROR(CheckOpenFiles(static_cast<int>(workers_.size()), file_limit_));
  LS_RETURN_IF_ERROR(CheckDevice(worker.assignment(), gpus_));
  std::vector<const WorkerAssignment*> others;
  for (const auto& [incarnation, other] : workers_) {
    if (!other->ended) others.push_back(&other->assignment());
  }
  if (const std::string shared = SharedWithAnotherJob(worker.assignment(), others);
      !shared.empty()) {
    WarnOnce(shared);
  }
  return absl::OkStatus();
}

absl::Status AgentImpl::StartWorker(WorkerProcess* worker, const WorkerProcess::Log& log) {
  LS_RETURN_IF_ERROR(log.status());
  LS_ASSIGN_OR_RETURN(std::shared_ptr<LifePage> page, PageOf(worker->assignment().job_id()));
  LS_RETURN_IF_ERROR(worker->Start(page, *log));
  WatchWorker(worker);
  return absl::OkStatus();
}

void AgentImpl::WatchWorker(WorkerProcess* worker) {
  life_watch_->Add(worker->id(), worker->page(), worker->life_slot());
  WatchOutput(worker);
}

void AgentImpl::WatchOutput(WorkerProcess* worker) {
  if (!worker->disk()->has_room()) return HoldOutput(worker);  // as when it was taken over
  for (int stream = 0; stream < 2; ++stream) {
    if (worker->has_ended(stream)) continue;
    const int fd = worker->output_fd(stream);
    const absl::Status watched = loop_->Watch(fd, [this, worker, stream, fd] {
      if (!worker->ReadOutput(stream)) return loop_->Forget(fd);
      if (!worker->disk()->has_room()) HoldOutput(worker);
    });
    // Of a stream whose end its supervisor has read, /dev/null is here, which nobody can wait for.
    if (!watched.ok() && !absl::IsFailedPrecondition(watched)) {
      WarnOnce(absl::StrCat("cannot read a worker's output: ", watched.message()));
    }
  }
}

void AgentImpl::HoldOutput(WorkerProcess* worker) {
  for (int stream = 0; stream < 2; ++stream) loop_->Forget(worker->output_fd(stream));
  worker->disk()->WhenRoom([this, incarnation = worker->incarnation()] {
    loop_->Post([this, incarnation] {
      const auto found = workers_.find(incarnation);
      if (found != workers_.end() && !found->second->ended) WatchOutput(found->second.get());
    });
  });
}

absl::StatusOr<std::shared_ptr<LifePage>> AgentImpl::PageOf(const std::string& job_id) {
  std::erase_if(pages_, [](const auto& entry) { return entry.second.expired(); });
  if (std::shared_ptr<LifePage> page = pages_[job_id].lock()) return page;
  LS_ASSIGN_OR_RETURN(std::shared_ptr<LifePage> page, LifePage::Create(options_.life_words));
  pages_[job_id] = page;
  return page;
}

void AgentImpl::Do(const agent_action::Forget& action) {
  const auto found = workers_.find(action.incarnation);
  if (found == workers_.end()) return;
  found->second->Forget();
  workers_.erase(found);
  // Those of jobs that are gone, when they are through.
  std::erase_if(disks_, [this](const auto& entry) {
    const auto& [job_id, disk] = entry;
    if (disk.use_count() > 1 || !disk->Settle(absl::ZeroDuration())) return false;
    standing_disks_.erase(job_id);
    return true;
  });
}

void AgentImpl::Signal(const std::string& incarnation, int signal) {
  if (preparing_.erase(incarnation) > 0 || opening_.erase(incarnation) > 0 ||
      gate_.Leave(incarnation)) {
    return OnStartFailed(workers_.at(incarnation).get(),
                         absl::CancelledError("it was ended before it was started"));
  }
  if (const auto it = workers_.find(incarnation); it != workers_.end()) it->second->Signal(signal);
}

void AgentImpl::OnStarted(WorkerProcess* worker, pid_t pid) {
  worker->pid = pid;
  Feed(agent_event::Started{worker->incarnation(), pid});
}

void AgentImpl::OnDied(uint64_t id, absl::Time seen) {
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->id() != id || worker->page() == nullptr) continue;
    return Feed(agent_event::Died{incarnation, worker->page()->DeathOrder(worker->life_slot()),
                                  Clock::Real()->Now() - seen});
  }
}

int64_t AgentImpl::Conclude(WorkerProcess* worker) {
  for (int stream = 0; stream < 2; ++stream) {
    if (const int fd = worker->output_fd(stream); fd >= 0) loop_->Forget(fd);
  }
  worker->FinishOutput();
  if (const auto unsaid = forwarder_.Ended(worker->assignment()); unsaid.has_value()) {
    Send(*unsaid);
  }
  worker->ended = true;
  life_watch_->Remove(worker->id());
  return worker->EndLife();
}

void AgentImpl::TellOnceLogged(WorkerProcess* worker, absl::Duration patience,
                               std::function<void()> tell) {
  if (worker->disk() == nullptr) return tell();  // it has no log
  const uint64_t id = worker->id();
  ends_[id] = {Clock::Real()->Now() + patience, std::move(tell)};
  worker->disk()->Do([this, id] {
    loop_->Post([this, id] {
      if (const auto end = ends_.extract(id); !end.empty()) end.mapped().tell();
    });
  });
}

absl::Time AgentImpl::TellLateEnds(absl::Time now) {
  std::vector<std::function<void()>> late;
  absl::Time next = absl::InfiniteFuture();
  for (auto it = ends_.begin(); it != ends_.end();) {
    if (it->second.deadline > now) {
      next = std::min(next, it->second.deadline);
      ++it;
    } else {
      late.push_back(std::move(it->second.tell));
      it = ends_.erase(it);
    }
  }
  for (const auto& tell : late) tell();
  return next;
}

void AgentImpl::OnExit(WorkerProcess* worker, const ProcessStarter::Exit& exit) {
  agent_event::Exited event;
  event.incarnation = worker->incarnation();
  event.order = Conclude(worker);
  event.exit_code = exit.code;
  event.signal = exit.signal;
  event.peak_rss_bytes = exit.peak_rss_bytes;
  event.last_lines = worker->LastOutput();
  event.died_before_signal = worker->died_before_signal();
  if (saving_) NoteFarewell(*worker, exit);
  const bool well = exit.code == 0 && exit.signal == 0;
  TellOnceLogged(worker, well ? kLogWritten : kLogOfFailed,
                 [this, event, at = exit.time]() mutable {
                   event.ago = std::max(absl::ZeroDuration(), Clock::Real()->Now() - at);
                   Feed(std::move(event));
                 });
}

void AgentImpl::OnStartFailed(WorkerProcess* worker, const absl::Status& why, bool node_unfit) {
  agent_event::StartFailed event;
  event.node_unfit = node_unfit;
  event.may_pass = !node_unfit && (absl::IsUnavailable(why) || absl::IsResourceExhausted(why));
  if (absl::IsResourceExhausted(why)) event.exit_code = kNoRoom;
  event.incarnation = worker->incarnation();
  event.order = Conclude(worker);
  event.why = ExplainStartFailure(why);
  event.last_lines = worker->LastOutput();
  Feed(std::move(event));
}

void AgentImpl::OnLines(WorkerProcess* worker, bool is_stderr,
                        const std::vector<std::string>& lines) {
  const auto message = forwarder_.Forward(worker->assignment(), is_stderr, lines);
  if (message.has_value()) Send(*message);
}

void AgentImpl::NoteFarewell(const WorkerProcess& worker, const ProcessStarter::Exit& exit) {
  absl::MutexLock lock(&mu_);
  ++farewell_.workers;
  farewell_.folder = WorkFolder(worker.assignment());
  if (exit.signal == 0 && exit.code == kFarewellSaved) {
    ++farewell_.saved;
  } else if (const std::vector<std::string> lines = worker.LastOutput(); !lines.empty()) {
    farewell_.last_line = lines.back();
  }
}

}  // namespace lockstep::launcher
