// SPDX-License-Identifier: Apache-2.0
#include "tests/machines/coordinator_process.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/files.h"
#include "coordinator/outbox/request_rows.h"

namespace lockstep::simulation {
namespace {

using coordinator::Event;
using coordinator::Outbox;
using coordinator::Outgoing;
using coordinator::SessionId;

// A journal that another one can take tells so who has it no more, also when nothing is written.
constexpr absl::Duration kLease = absl::Seconds(30);

absl::Duration CpuTime() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(Timeline* timeline, Host* host, Disk* disk,
                                       Surroundings* surroundings, Settings settings)
    : Process(timeline, host),
      disk_(disk),
      surroundings_(surroundings),
      settings_(std::move(settings)) {}

absl::Status CoordinatorProcess::Begin() {
  epoch_ = disk_->Take();
  std::vector<coordinator::Row> rows;
  std::vector<coordinator::StoredRequest> requests;
  for (const auto& [key, value] : disk_->rows) {
    if (!coordinator::IsRequestRow(key)) {
      rows.push_back({key, value});
      continue;
    }
    auto request = coordinator::ParseRequestRow({key, value});
    if (!request.ok()) return request.status();
    requests.push_back(*std::move(request));
  }
  absl::StatusOr<coordinator::State> state = coordinator::Restore(rows, settings_.limits, Now());
  if (!state.ok()) return state.status();
  outbox_ =
      std::make_unique<Outbox>(coordinator::Speaker{disk_->cluster, epoch_}, *std::move(state));
  surroundings_->OnBegin(*this);
  LookAtLease();
  Do([&](absl::Time now) { return outbox_->Begin(requests, now); });
  return absl::OkStatus();
}

bool CoordinatorProcess::HasWrittenAll() const {
  return outbox_->trouble().ok() && state().owed_erasures.empty() && !disk_->IsWriting(epoch_);
}

void CoordinatorProcess::LookAtLease() {
  After(kLease, [this] {
    if (!disk_->Owns(epoch_)) return surroundings_->OnBroken(*this);
    LookAtLease();
  });
}

template <typename Call>
void CoordinatorProcess::Do(Call call) {
  const absl::Duration before = settings_.measure ? CpuTime() : absl::ZeroDuration();
  Outgoing outgoing = call(Now());
  if (settings_.measure) cpu_ += CpuTime() - before;
  ++steps_;
  CarryOut(std::move(outgoing));
  if (!alive()) return;
  surroundings_->AfterStep(*this);
  ArmTimer();
}

void CoordinatorProcess::ArmTimer() {
  const absl::Time at = outbox_->wake_at();
  if (at == absl::InfiniteFuture() || at >= armed_) return;
  armed_ = at;
  After(std::max(absl::ZeroDuration(), at - Now()), [this, at] {
    if (at == armed_) armed_ = absl::InfiniteFuture();
    if (Now() >= outbox_->wake_at()) {
      ++wakes_;
      Do([this](absl::Time now) { return outbox_->Wake(now); });
    } else {
      ArmTimer();
    }
  });
}

void CoordinatorProcess::CarryOut(Outgoing outgoing) {
  for (coordinator::ToAgent& message : outgoing.to_agents) SendToAgent(std::move(message));
  for (coordinator::ToWorker& message : outgoing.to_workers) SendToWorker(std::move(message));
  for (const coordinator::Append& append : outgoing.events) surroundings_->OnTold(*this, append);
  for (const coordinator::Answer& answer : outgoing.answers) {
    const auto found = waiting_.find(answer.ticket);
    if (found == waiting_.end()) continue;
    const auto tell = std::move(found->second);
    waiting_.erase(found);
    tell(answer);
  }
  if (!outgoing.write.empty()) surroundings_->Write(*this, std::move(outgoing.write));
  if (outbox_->broken()) {
    After(absl::Milliseconds(1), [this] { surroundings_->OnBroken(*this); });
  }
}

void CoordinatorProcess::SendToAgent(coordinator::ToAgent message) {
  const SessionId session = message.session;
  const auto found = agents_.by_session.find(session);
  if (found == agents_.by_session.end()) return;
  const bool close = message.close;
  found->second.machine.Enqueue(Whole(std::move(message)), close);
  Pump<AgentMessage, AgentCommand, coordinator::AgentGone>(agents_, session);
}

void CoordinatorProcess::SendToWorker(coordinator::ToWorker message) {
  const SessionId session = message.session;
  const auto found = workers_.by_session.find(session);
  if (found == workers_.by_session.end()) return;
  const bool close = message.close;
  found->second.machine.Enqueue(
      surroundings_->CommandFor(found->second.connection->client(), std::move(message)), close);
  Pump<WorkerMessage, WorkerCommand, coordinator::WorkerGone>(workers_, session);
}

absl::Status CoordinatorProcess::AskForFiles(const std::string& job_id,
                                             const std::string& node_id) {
  const absl::StatusOr<SessionId> session =
      coordinator::FileSender(state(), job_id, node_id, Now());
  if (!session.ok()) return session.status();
  AgentCommand command;
  command.set_cluster_id(outbox_->speaker().cluster_id);
  command.set_epoch(outbox_->speaker().epoch);
  command.set_epoch_proof(outbox_->speaker().epoch_proof);
  command.mutable_send_files()->set_job_id(job_id);
  SendToAgent({*session, std::move(command)});
  return absl::OkStatus();
}

void CoordinatorProcess::Written(const absl::Status& status) {
  Do([&](absl::Time now) { return outbox_->Written(status, now); });
}

template <typename Up, typename Down, typename Over>
void CoordinatorProcess::Pump(Streams<Up, Down>& streams, SessionId session) {
  const auto found = streams.by_session.find(session);
  if (found == streams.by_session.end()) return;
  auto& stream = found->second;
  auto next = stream.machine.TakeNext();
  if (next.write) {
    stream.connection->down->Write(*std::move(next.write), [this, &streams, session](bool ok) {
      const auto stream_now = streams.by_session.find(session);
      if (stream_now == streams.by_session.end()) return;
      stream_now->second.machine.WriteDone(ok);
      Pump<Up, Down, Over>(streams, session);
    });
  } else if (next.finish) {
    stream.connection->EndServer();
    After(absl::Microseconds(50),
          [this, &streams, session] { Remove<Up, Down, Over>(streams, session); });
  }
}

template <typename Up, typename Down, typename Over>
void CoordinatorProcess::Remove(Streams<Up, Down>& streams, SessionId session) {
  if (streams.by_session.erase(session) == 0) return;
  Do([&](absl::Time now) { return outbox_->Handle(Over{session}, 0, now); });
}

template <typename Up, typename Down, typename Said, typename Over>
std::shared_ptr<Connection<Up, Down>> CoordinatorProcess::AcceptOn(
    Streams<Up, Down>& streams, std::shared_ptr<Process> client,
    typename Pipe<Down>::Ends at_client) {
  const SessionId session = ++last_session_;
  auto connection =
      std::make_shared<Connection<Up, Down>>(&timeline(), std::move(client), shared_from_this());
  typename Pipe<Up>::Ends at_server;
  at_server.arrived = [this, session, &streams](Up message) {
    const auto found = streams.by_session.find(session);
    if (found == streams.by_session.end()) return;
    surroundings_->OnHeard(*this, message, found->second.connection->client());
    Do([&](absl::Time now) { return outbox_->Handle(Said{session, std::move(message)}, 0, now); });
  };
  at_server.ended = [this, session, &streams] {
    const auto found = streams.by_session.find(session);
    if (found == streams.by_session.end()) return;
    found->second.machine.PeerGone();
    Pump<Up, Down, Over>(streams, session);
  };
  connection->Open(std::move(at_server), std::move(at_client));
  streams.by_session[session] = {connection, {}};
  surroundings_->OnConnection(connection);
  return connection;
}

std::shared_ptr<AgentConnection> CoordinatorProcess::Accept(std::shared_ptr<Process> client,
                                                            Pipe<AgentCommand>::Ends at_client) {
  return AcceptOn<AgentMessage, AgentCommand, coordinator::AgentSaid, coordinator::AgentGone>(
      agents_, std::move(client), std::move(at_client));
}

std::shared_ptr<WorkerConnection> CoordinatorProcess::Accept(std::shared_ptr<Process> client,
                                                             Pipe<WorkerCommand>::Ends at_client) {
  return AcceptOn<WorkerMessage, WorkerCommand, coordinator::WorkerSaid, coordinator::WorkerGone>(
      workers_, std::move(client), std::move(at_client));
}

void CoordinatorProcess::Request(const Event& event,
                                 std::function<void(const coordinator::Answer&)> answer) {
  const int64_t ticket = ++last_ticket_;
  waiting_[ticket] = std::move(answer);
  Do([&](absl::Time now) { return outbox_->Handle(event, ticket, now); });
}

void CoordinatorProcess::AwaitSaved(std::function<void(const coordinator::Answer&)> answer) {
  const int64_t ticket = ++last_ticket_;
  waiting_[ticket] = std::move(answer);
  Do([&](absl::Time now) { return outbox_->AwaitSaved(ticket, now); });
}

void CoordinatorProcess::OnDeath() {
  // Its kernel ends the connections, if its host still runs.
  const auto end = [this](auto& streams) {
    for (auto& [session, stream] : streams.by_session) {
      if (host()->up) stream.connection->EndServer();
    }
    streams.by_session.clear();
  };
  end(agents_);
  end(workers_);
}

}  // namespace lockstep::simulation
