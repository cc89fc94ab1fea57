// SPDX-License-Identifier: Apache-2.0
// How an agent takes over the workers of the agent before it, from their supervisors.
#include <sys/stat.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "launcher/agent/agent_impl.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kPageFd = 3;  // of SupervisorClient::Kept, as WorkerProcess hands them over

// What of a supervisor's process can be adopted.
struct Heir {
  std::shared_ptr<SupervisorClient> supervisor;
  SupervisorClient::Kept kept;
  WorkerNote note;
};

ino_t InodeOf(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

absl::Status AgentImpl::AdoptWorkers() {
  if (options_.private_agent) return absl::OkStatus();
  Supervisors::Options options;
  options.folder = absl::StrCat(state_folder_, "/supervisors");
  options.program = options_.supervisor_program;
  options.worker_program = options_.worker_program;
  options.orphan_grace = options_.orphan_grace;
  supervisors_ = std::make_unique<Supervisors>(std::move(options));
  LS_ASSIGN_OR_RETURN(std::vector<Supervisors::Found> all,
                      supervisors_->TakeOver([this](const std::string& text) { Warn(text); }));
  // Workers of a job meet in one life page, which more than one supervisor may have.
  std::map<ino_t, std::vector<Heir>> by_page;
  for (Supervisors::Found& found : all) {
    for (SupervisorClient::Kept& kept : found.processes) {
      Heir heir{found.supervisor, std::move(kept), {}};
      if (heir.kept.fds.size() <= kPageFd || !heir.note.ParseFromString(heir.kept.process.note())) {
        Warn(absl::StrCat("process ", heir.kept.process.pid(), " of job ",
                          found.supervisor->job_id(), " cannot be taken over and is left alone"));
        continue;
      }
      by_page[InodeOf(heir.kept.fds[kPageFd].get())].push_back(std::move(heir));
    }
  }
  for (auto& [inode, heirs] : by_page) {
    LS_ASSIGN_OR_RETURN(std::unique_ptr<LifePage> opened,
                        LifePage::Open(std::move(heirs.front().kept.fds[kPageFd])));
    const std::shared_ptr<LifePage> page = std::move(opened);
    std::vector<int> slots;
    for (const Heir& heir : heirs) slots.push_back(heir.note.life_slot());
    page->TakeOver(slots);
    for (Heir& heir : heirs) Adopt(heir.supervisor, std::move(heir.kept), heir.note, page);
  }
  for (const Supervisors::Found& found : all) found.supervisor->Run();
  return absl::OkStatus();
}

void AgentImpl::Adopt(const std::shared_ptr<SupervisorClient>& supervisor,
                      SupervisorClient::Kept kept, const WorkerNote& note,
                      std::shared_ptr<LifePage> page) {
  agent_event::Adopted event;
  if (!event.assignment.ParseFromString(note.assignment())) return;
  event.cluster = note.cluster_id();
  event.epoch = {note.epoch(), note.epoch_proof()};
  event.pid = kept.process.pid();
  event.wanted_end = kept.process.signalled();
  if (workers_.contains(event.assignment.incarnation())) {
    return Warn(absl::StrCat("process ", event.pid, " says that it is worker ",
                             event.assignment.incarnation(),
                             ", which another one is: it is left alone"));
  }
  auto owned = std::make_unique<WorkerProcess>(&node_, event.assignment, next_worker_id_++,
                                               WorkerProcess::Origin{event.cluster, event.epoch});
  WorkerProcess* const worker = owned.get();
  const std::string& incarnation = event.assignment.incarnation();
  workers_[incarnation] = std::move(owned);
  pages_[event.assignment.job_id()] = page;
  const KeptProcess process = kept.process;
  const bool runs = !process.has_ended();
  supervisor->Adopt(process,
                    worker->Adopt(supervisor, std::move(kept), std::move(page), note.life_slot()));
  WatchWorker(worker);
  LS_LOG_INFO << "worker " << incarnation << " (process " << process.pid() << ") of job '"
              << event.assignment.spec().name() << "' "
              << (runs ? "is taken over" : "has ended while no agent was here");
  Feed(std::move(event));
}

}  // namespace lockstep::launcher
