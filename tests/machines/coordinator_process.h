// SPDX-License-Identifier: Apache-2.0
// One life of the coordinator: the outbox with the core in it, and a stream machine for each
// connection. What is around it writes its journal and looks on.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_COORDINATOR_PROCESS_H_
#define LOCKSTEP_TESTS_MACHINES_COORDINATOR_PROCESS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/outbox/outbox.h"
#include "coordinator/outbox/stream_machine.h"
#include "tests/machines/connection.h"
#include "tests/machines/disk.h"
#include "tests/machines/host.h"

namespace lockstep::simulation {

class CoordinatorProcess;
using AgentConnection = Connection<AgentMessage, AgentCommand>;
using WorkerConnection = Connection<WorkerMessage, WorkerCommand>;

class Surroundings {
 public:
  virtual ~Surroundings() = default;

  // Writes the rows as one batch and says so, by CoordinatorProcess::Written.
  virtual void Write(CoordinatorProcess& process, std::vector<coordinator::Row> rows) = 0;
  // Its journal has failed or is another one's: it is to end.
  virtual void OnBroken(CoordinatorProcess& process) = 0;

  // It has read its journal and begins.
  virtual void OnBegin(const CoordinatorProcess& /*process*/) {}
  virtual void AfterStep(const CoordinatorProcess& /*process*/) {}
  virtual void OnHeard(const CoordinatorProcess& /*process*/, const AgentMessage& /*message*/,
                       const Process& /*client*/) {}
  virtual void OnHeard(const CoordinatorProcess& /*process*/, const WorkerMessage& /*message*/,
                       const Process& /*client*/) {}
  // Followers are told.
  virtual void OnTold(const CoordinatorProcess& /*process*/, const coordinator::Append& /*told*/) {}
  virtual void OnConnection(const std::shared_ptr<Breakable>& /*connection*/) {}
  // What is sent to this worker.
  virtual WorkerCommand CommandFor(const Process& /*client*/, coordinator::ToWorker message) {
    return coordinator::Whole(std::move(message));
  }
};

class CoordinatorProcess : public Process {
 public:
  struct Settings {
    coordinator::Options limits;
    bool measure = false;  // the CPU time of its steps
  };

  CoordinatorProcess(Timeline* timeline, Host* host, Disk* disk, Surroundings* surroundings,
                     Settings settings);

  // Reads the disk and begins. Whoever connects before waits. Errors: as Restore.
  absl::Status Begin();
  // How the write went that was asked for.
  void Written(const absl::Status& status);
  // A new connection from `client`.
  std::shared_ptr<AgentConnection> Accept(std::shared_ptr<Process> client,
                                          Pipe<AgentCommand>::Ends at_client);
  std::shared_ptr<WorkerConnection> Accept(std::shared_ptr<Process> client,
                                           Pipe<WorkerCommand>::Ends at_client);
  // A user's request; `answer` may never come.
  void Request(const coordinator::Event& event,
               std::function<void(const coordinator::Answer&)> answer);
  // A user looks at how things are, and is answered when that is on the disk; `answer` may never
  // come.
  void AwaitSaved(std::function<void(const coordinator::Answer&)> answer);
  // A user asks for files of a job, which the agent of a node is to send: no row follows from that,
  // so it is said at once. Errors: as coordinator::FileSender.
  absl::Status AskForFiles(const std::string& job_id, const std::string& node_id);

  const coordinator::State& state() const { return outbox_->state(); }
  bool begun() const { return outbox_ != nullptr; }
  bool holding() const { return outbox_->holding(); }
  // Returns whether all that it knows is on the disk, and nothing else.
  bool HasWrittenAll() const;
  int64_t epoch() const { return epoch_; }
  // CPU time of all steps, and how many there were.
  absl::Duration cpu() const { return cpu_; }
  int64_t steps() const { return steps_; }
  // Of these, steps that nothing but time was the reason for.
  int64_t wakes() const { return wakes_; }

 protected:
  void OnDeath() override;

 private:
  template <typename Up, typename Down>
  struct Streams {
    struct One {
      std::shared_ptr<Connection<Up, Down>> connection;
      coordinator::StreamMachine<Down> machine;
    };
    std::map<coordinator::SessionId, One> by_session;
  };
  template <typename Up, typename Down, typename Said, typename Over>
  std::shared_ptr<Connection<Up, Down>> AcceptOn(Streams<Up, Down>& streams,
                                                 std::shared_ptr<Process> client,
                                                 typename Pipe<Down>::Ends at_client);
  template <typename Up, typename Down, typename Over>
  void Pump(Streams<Up, Down>& streams, coordinator::SessionId session);
  template <typename Up, typename Down, typename Over>
  void Remove(Streams<Up, Down>& streams, coordinator::SessionId session);

  // Hands an event to the outbox and does what it says.
  template <typename Call>
  void Do(Call call);
  void CarryOut(coordinator::Outgoing outgoing);
  void SendToAgent(coordinator::ToAgent message);
  void SendToWorker(coordinator::ToWorker message);
  void ArmTimer();
  void LookAtLease();

  Disk* const disk_;
  Surroundings* const surroundings_;
  const Settings settings_;
  std::unique_ptr<coordinator::Outbox> outbox_;
  int64_t epoch_ = 0;
  Streams<AgentMessage, AgentCommand> agents_;
  Streams<WorkerMessage, WorkerCommand> workers_;
  coordinator::SessionId last_session_ = 0;
  int64_t last_ticket_ = 0;
  std::map<int64_t, std::function<void(const coordinator::Answer&)>> waiting_;
  absl::Time armed_ = absl::InfiniteFuture();
  absl::Duration cpu_;
  int64_t steps_ = 0;
  int64_t wakes_ = 0;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_COORDINATOR_PROCESS_H_
