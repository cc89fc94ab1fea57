// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/worker_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/memory_file.h"
#include "common/status.h"
#include "coordinator/client/token.h"
#include "launcher/agent/reconcile.h"
#include "launcher/agent/run_folder.h"
#include "launcher/spawner/child.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {
namespace {

constexpr int kBootstrapFd = 3;
constexpr int kLifeFd = 4;
// A pipe holds this much while the agent is busy elsewhere; the worker blocks only beyond it.
constexpr int kPipeBytes = 256 << 10;
constexpr size_t kReadAtOnce = 256 << 10;
// What a text takes that waits for the disk, however short it is (bytes).
constexpr size_t kOfWaiting = 256;
// And each of its lines, where it is left to a supervisor (bytes).
constexpr size_t kOfEachLine = 64;

absl::Status MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "cannot make a pipe for a worker's output");
  }
  read_end->reset(fds[0]);
  write_end->reset(fds[1]);
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  ::fcntl(fds[1], F_SETPIPE_SZ, kPipeBytes);  // the default size does as well
  return absl::OkStatus();
}

// Runs it as the account, with what a login would set.
void TakeAccount(const Account& account, ProcessStarter::Request& request) {
  request.uid = account.uid;
  request.gid = account.gid;
  request.groups.assign(account.groups.begin(), account.groups.end());
  // Where the job's own words do not say it.
  const std::pair<const char*, std::string> of_a_login[] = {
      {"HOME", account.home}, {"USER", account.name}, {"LOGNAME", account.name}};
  for (const auto& [name, value] : of_a_login) {
    const std::string begin = absl::StrCat(name, "=");
    const bool said = std::any_of(request.set_env.begin(), request.set_env.end(),
                                  [&](const std::string& set) { return set.rfind(begin, 0) == 0; });
    if (!said) request.set_env.push_back(begin + value);
  }
  for (const char* of_the_agent : {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME",
                                   "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "MAIL"}) {
    request.unset_env.push_back(of_the_agent);
  }
}

}  // namespace

WorkerBootstrap WorkerProcess::Bootstrap() const {
  WorkerBootstrap bootstrap;
  *bootstrap.mutable_assignment() = assignment_;
  bootstrap.mutable_assignment()->clear_token();
  bootstrap.set_coordinator_address(node_->coordinator_address);
  // Its own secret, for the coordinator that the agent's token names.
  bootstrap.set_token(coordinator::WithSecret(node_->token, assignment_.token()));
  bootstrap.set_node_id(node_->node_id);
  bootstrap.set_host(node_->host);
  bootstrap.set_life_slot(life_slot_);
  for (const std::string& address : node_->data_addresses) bootstrap.add_data_addresses(address);
  bootstrap.set_cluster_id(origin_.cluster_id);
  bootstrap.set_epoch(origin_.epoch.number);
  return bootstrap;
}

std::string WorkerProcess::LogPath() const {
  return absl::StrCat(RunFolder(assignment_), "/logs/", assignment_.slot(), ".log");
}

std::string WorkerProcess::Note() const {
  WorkerNote note;
  note.set_assignment(assignment_.SerializeAsString());
  note.set_life_slot(life_slot_);
  note.set_cluster_id(origin_.cluster_id);
  note.set_epoch(origin_.epoch.number);
  note.set_epoch_proof(origin_.epoch.proof);
  return note.SerializeAsString();
}

ProcessStarter::Callbacks WorkerProcess::Callbacks() {
  // They may come from a thread of the supervisor's client until that is gone, which this need not
  // outlive; what they post is done by the agent's loop, if that still runs.
  ProcessStarter::Callbacks callbacks;
  callbacks.on_started = [this, node = node_](pid_t pid) {
    node->post([this, pid] { node_->on_started(this, pid); });
  };
  callbacks.on_failed = [this, node = node_](const ProcessStarter::Failure& failure) {
    node->post([this, failure] {
      const std::string folder = absl::StrCat("its folder ", WorkFolder(assignment_));
      node_->on_start_failed(this, failure.of_folder ? Annotate(failure.why, folder) : failure.why);
    });
  };
  callbacks.on_exit = [this, node = node_](const ProcessStarter::Exit& exit) {
    node->post([this, exit] { node_->on_exit(this, exit); });
  };
  return callbacks;
}

ProcessStarter::Callbacks WorkerProcess::Adopt(std::shared_ptr<SupervisorClient> supervisor,
                                               SupervisorClient::Kept kept,
                                               std::shared_ptr<LifePage> page, int life_slot) {
  starter_ = std::move(supervisor);
  spawn_id_ = kept.process.id();
  page_ = std::move(page);
  life_slot_ = life_slot;
  pid = static_cast<pid_t>(kept.process.pid());
  signalled_ = kept.process.signalled();
  for (int i = 0; i < 2; ++i) {
    streams_[i].fd = std::move(kept.fds[static_cast<size_t>(i)]);
    if (i >= kept.process.partial_size()) continue;
    std::vector<std::string> none;
    streams_[i].splitter.Feed(kept.process.partial(i), &none);
  }
  disk_ = node_->disk(assignment_.job_id());
  log_ = std::make_shared<LogFile>();
  log_->Use(std::move(kept.fds[2]), LogPath());
  if (const int64_t lost = kept.process.lost_lines(); lost > 0) {
    Write(/*is_stderr=*/false, {absl::StrCat("[", lost, lost == 1 ? " line is" : " lines are",
                                             " missing here: this log could not be written]")});
  }
  std::vector<std::string> unlogged;  // of one stream
  bool of_stderr = false;
  for (const PrintedLine& line : kept.process.lines()) {
    last_lines_.Add(line.is_stderr(), line.text());
    if (!line.told()) node_->on_lines(this, line.is_stderr(), {line.text()});
    if (!line.unlogged()) continue;
    if (line.is_stderr() != of_stderr) Write(of_stderr, std::exchange(unlogged, {}));
    of_stderr = line.is_stderr();
    unlogged.push_back(line.text());
  }
  Write(of_stderr, unlogged);
  return Callbacks();
}

void WorkerProcess::Forget() {
  if (starter_ != nullptr) starter_->Forget(spawn_id_);
}

void WorkerProcess::LeavePartial() {
  if (starter_ == nullptr) return;
  starter_->LeaveOutput(
      spawn_id_, {.out = streams_[0].splitter.partial(), .err = streams_[1].splitter.partial()});
}

void WorkerProcess::StopLogging() { unlogged_->Stop(); }

void WorkerProcess::LeaveUnlogged() {
  if (starter_ != nullptr) starter_->LeaveOutput(spawn_id_, {.unlogged = unlogged_->Unwritten()});
}

void WorkerProcess::OpenLog(std::function<void(const Log&)> done) {
  if (node_->as_users) {
    absl::StatusOr<Account> account = FindAccount(assignment_.user(), node_->allow_root);
    if (!account.ok()) return done(account.status());
    account_ = *std::move(account);
  }
  disk_ = node_->disk(assignment_.job_id());
  disk_->Do([open = node_->open_log, own = node_->own_run_folder, assignment = assignment_,
             account = account_, path = LogPath(), done = std::move(done)] {
    absl::StatusOr<UniqueFd> fd = [&]() -> absl::StatusOr<UniqueFd> {
      AsAccount as;
      LS_RETURN_IF_ERROR(as.Become(account));
      return open(assignment, own);
    }();
    if (!fd.ok()) return done(fd.status());
    auto log = std::make_shared<LogFile>();
    log->Use(*std::move(fd), path);
    done(log);
  });
}

absl::Status WorkerProcess::Start(std::shared_ptr<LifePage> page, std::shared_ptr<LogFile> log) {
  LS_ASSIGN_OR_RETURN(life_slot_, page->Issue());
  page_ = std::move(page);
  log_ = std::move(log);
  const UniqueFd log_too(::fcntl(log_->fd(), F_DUPFD_CLOEXEC, 0));
  LS_ASSIGN_OR_RETURN(UniqueFd bootstrap_file,
                      MemoryFile("lockstep-bootstrap", Bootstrap().SerializeAsString()));
  UniqueFd write_ends[2];
  for (int i = 0; i < 2; ++i) LS_RETURN_IF_ERROR(MakePipe(&streams_[i].fd, &write_ends[i]));

  ProcessStarter::Request request;
  request.argv = {node_->program, absl::StrCat("--bootstrap-fd=", kBootstrapFd),
                  absl::StrCat("--life-fd=", kLifeFd)};
  request.unset_env = node_->is_private ? TokenVariables() : AgentVariables();
  for (const auto& [name, value] : assignment_.spec().env()) {
    request.set_env.push_back(absl::StrCat(name, "=", value));
  }
  for (const auto& [name, value] : assignment_.spec().secrets()) {
    request.set_env.push_back(absl::StrCat(name, "=", value));
  }
  if (account_.has_value()) TakeAccount(*account_, request);
  request.cwd = WorkFolder(assignment_);
  request.stdout_fd = write_ends[0].get();
  request.stderr_fd = write_ends[1].get();
  request.fds = {bootstrap_file.get(), page_->fd()};
  request.legacy = {.note = Note(),
                    .fds = {streams_[0].fd.get(), streams_[1].fd.get(), log_too.get(), page_->fd()},
                    .grace = EndGrace(assignment_.spec()),
                    .worker_program = true};
  absl::Status asked = Ask(request);
  // A supervisor that was killed just now has a successor.
  if (absl::IsUnavailable(asked)) asked = Ask(request);
  return asked;
}

absl::Status WorkerProcess::Ask(const ProcessStarter::Request& request) {
  LS_ASSIGN_OR_RETURN(starter_, node_->starter(assignment_.job_id()));
  LS_ASSIGN_OR_RETURN(spawn_id_, starter_->Spawn(request, Callbacks()));
  return absl::OkStatus();
}

void WorkerProcess::Signal(int signal) {
  if (!std::exchange(signalled_, true)) {
    // The word says so before anybody has told the agent.
    died_before_signal_ = page_ != nullptr && page_->Get(life_slot_) == LifePage::State::kDead;
  }
  if (starter_ != nullptr) starter_->Kill(spawn_id_, signal).IgnoreError();
}

int64_t WorkerProcess::EndLife() {
  if (page_ == nullptr) return 0;
  page_->End(life_slot_);
  const int64_t order = page_->DeathOrder(life_slot_);
  page_->Release(life_slot_);
  page_.reset();
  return order;
}

bool WorkerProcess::ReadOutput(int stream) {
  Stream& from = streams_[stream];
  std::vector<std::string> lines;
  char buffer[64 << 10];
  size_t total = 0;
  bool open = from.fd.valid();
  while (open && total < kReadAtOnce) {
    const ssize_t n = ::read(from.fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      from.splitter.Finish(&lines);
      from.ended = true;
      open = false;
      break;
    }
    from.splitter.Feed(std::string_view(buffer, static_cast<size_t>(n)), &lines);
    total += static_cast<size_t>(n);
  }
  HandleLines(stream, lines);
  const std::string state = from.states.Take(from.splitter, Clock::Real()->Now());
  if (!state.empty()) node_->on_lines(this, stream == 1, {state});
  return open;
}

void WorkerProcess::FinishOutput() {
  for (int stream = 0; stream < 2; ++stream) {
    // What the process wrote is in the pipe. A descendant that left the group may hold the other
    // end and go on writing: no more than a pipe's content is read.
    if (streams_[stream].fd.valid()) ReadOutput(stream);
    std::vector<std::string> lines;
    streams_[stream].splitter.Finish(&lines);
    HandleLines(stream, lines);
    streams_[stream].fd.reset();
  }
  CloseLog();
}

void WorkerProcess::HandleLines(int stream, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  for (const std::string& line : lines) last_lines_.Add(stream == 1, line);
  node_->on_lines(this, stream == 1, lines);
  Write(stream == 1, lines);
}

// As many texts as it takes: one that is being written when the agent ends may come twice.
void WorkerProcess::Write(bool is_stderr, const std::vector<std::string>& lines) {
  if (log_ == nullptr) return;
  const std::span<const std::string> all(lines);
  for (size_t begin = 0, bytes = 0, end = 0; end < all.size(); ++end) {
    bytes += all[end].size() + 1;
    if (end + 1 < all.size() && bytes < kReadAtOnce) continue;
    WriteText(is_stderr, all.subspan(begin, end + 1 - begin));
    begin = end + 1;
    bytes = 0;
  }
}

void WorkerProcess::WriteText(bool is_stderr, std::span<const std::string> lines) {
  std::string text = Joined(lines);
  const size_t bytes = text.size() + kOfWaiting + kOfEachLine * lines.size();
  unlogged_->Add({is_stderr, std::move(text)});
  disk_->Do(
      [node = node_, log = log_, unlogged = unlogged_] {
        const absl::Status logged = unlogged->WriteOldest(log.get());
        if (!logged.ok()) node->post([node, logged] { node->on_warning(logged); });
      },
      bytes);
}

// Also a close may wait for the disk.
void WorkerProcess::CloseLog() {
  if (log_ != nullptr) disk_->Do([log = std::move(log_)] {});
  log_ = nullptr;
}

}  // namespace lockstep::launcher
