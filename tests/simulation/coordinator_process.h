// SPDX-License-Identifier: Apache-2.0
// One life of the coordinator: the outbox with the core in it, and a stream machine for each
// connection. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
#define LOCKSTEP_TESTS_SIMULATION_COORDINATOR_PROCESS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/outbox/outbox.h"
#include "coordinator/outbox/stream_machine.h"
#include "tests/simulation/connection.h"
#include "tests/simulation/host.h"

namespace lockstep::simulation {

class World;

using AgentConnection = Connection<AgentMessage, AgentCommand>;
using WorkerConnection = Connection<WorkerMessage, WorkerCommand>;

class CoordinatorProcess : public Process {
 public:
  CoordinatorProcess(World* world, Host* host);

  // Reads the disk and begins. Whoever connects before waits.
  void Begin();
  // A new connection from `client`.
  std::shared_ptr<AgentConnection> Accept(std::shared_ptr<Process> client,
                                          Pipe<AgentCommand>::Ends at_client);
  std::shared_ptr<WorkerConnection> Accept(std::shared_ptr<Process> client,
                                           Pipe<WorkerCommand>::Ends at_client);
  // A user's request; `answer` may never come.
  void Request(const coordinator::Event& event,
               std::function<void(const coordinator::Answer&)> answer);

  const coordinator::State& state() const { return outbox_->state(); }
  bool begun() const { return outbox_ != nullptr; }
  bool holding() const { return outbox_->holding(); }
  int64_t epoch() const { return epoch_; }
  // No other one has taken its place.
  bool IsCurrent() const;
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
  void Write(std::vector<coordinator::Row> rows);
  void ArmTimer();
  void LookAtLease();

  World* const world_;
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

#endif  // LOCKSTEP_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
