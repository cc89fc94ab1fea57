// SPDX-License-Identifier: Apache-2.0
// Peers of a coordinator for tests: real client sessions that keep what they are told, and waits
// with a deadline instead of sleeps.
#ifndef LOCKSTEP_TESTS_INTEGRATION_COORDINATOR_TEST_PEERS_H_
#define LOCKSTEP_TESTS_INTEGRATION_COORDINATOR_TEST_PEERS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/client/client.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Messages of one kind that arrived, in order.
template <typename T>
class Inbox {
 public:
  void Add(const T& item) {
    absl::MutexLock lock(&mu_);
    items_.push_back(item);
  }
  // Waits until one that fits has arrived and returns it; a default one after kPatience.
  T WaitFor(const std::function<bool(const T&)>& fits) {
    absl::MutexLock lock(&mu_);
    T found;
    auto there = [&] {
      for (const T& item : items_) {
        if (!fits(item)) continue;
        found = item;
        return true;
      }
      return false;
    };
    mu_.AwaitWithTimeout(absl::Condition(&there), kPatience);
    return found;
  }
  bool Any() {
    absl::MutexLock lock(&mu_);
    return !items_.empty();
  }
  void Clear() {
    absl::MutexLock lock(&mu_);
    items_.clear();
  }

 private:
  absl::Mutex mu_;
  std::vector<T> items_;
};

struct FakeAgent {
  explicit FakeAgent(const std::string& address, const std::string& token = "", int slots = 4)
      : session(OpenAgentSession(
            {address, token},
            {[slots] {
               AgentMessage message;
               AgentHello& hello = *message.mutable_hello();
               hello.set_node_id("n1");
               hello.set_incarnation("n1-1");
               hello.set_host("host-a");
               hello.set_slots(slots);
               hello.set_protocol_version(1);
               return message;
             },
             [this](const AgentCommand& command) { inbox.Add(command); },
             [this](bool up, const std::string&) { connections.Add(up ? 1 : 2); }})) {}
  DesiredWorkers WaitForWorkers(int count) {
    return inbox
        .WaitFor([count](const AgentCommand& c) {
          return c.has_desired() && c.desired().workers_size() == count;
        })
        .desired();
  }
  void Exited(const WorkerAssignment& worker, int code, int signal, int64_t order) {
    AgentMessage message;
    WorkerExited& exited = *message.mutable_exited();
    exited.set_job_id(worker.job_id());
    exited.set_worker_incarnation(worker.incarnation());
    exited.set_exit_code(code);
    exited.set_signal(signal);
    exited.set_order(order);
    session->Send(message);
  }
  Inbox<AgentCommand> inbox;
  Inbox<int> connections;  // 1 up, 2 down
  std::unique_ptr<AgentSession> session;
};

// Returns what the worker of `assignment` shows, whose agent shows `token`.
inline std::string TokenOfWorker(const std::string& token, const WorkerAssignment& assignment) {
  return *TokenOf({assignment.token(), ParseToken(token)->authority});
}

struct FakeWorker {
  // `epoch`: of the coordinator that it obeyed last; 0: none.
  FakeWorker(const std::string& address, const WorkerAssignment& assignment,
             const std::string& token = "", int64_t epoch = 0)
      : assignment(assignment),
        session(OpenWorkerSession(
            {address, TokenOfWorker(token, assignment)},
            {[this, epoch] {
               WorkerMessage message = Message();
               WorkerHello& hello = *message.mutable_hello();
               hello.set_epoch(epoch);
               hello.set_pid(100 + this->assignment.slot());
               hello.set_host("host-a");
               hello.set_slot(this->assignment.slot());
               hello.set_protocol_version(1);
               return message;
             },
             [this](const WorkerCommand& command) { inbox.Add(command); }, nullptr})) {}
  WorkerMessage Message() const {
    WorkerMessage message;
    message.set_job_id(assignment.job_id());
    message.set_incarnation(assignment.incarnation());
    return message;
  }
  void Ready() {
    WorkerMessage message = Message();
    message.mutable_ready()->set_plan_hash("p");
    message.mutable_ready()->set_device_hash("d");
    message.mutable_ready()->mutable_address()->set_shm(absl::StrCat("shm-", assignment.slot()));
    session->Send(message);
  }
  void Finish(bool drained = false) {
    WorkerMessage message = Message();
    WorkerFinished& finished = *message.mutable_finished();
    finished.set_generation(1);
    finished.set_steps(12);
    finished.set_drained(drained);
    finished.set_peak_rss_bytes(1000 + assignment.slot());
    if (assignment.slot() == 0) finished.set_model_path("model/model.safetensors");
    session->Send(message);
  }
  WorkerCommand WaitFor(WorkerCommand::CommandCase which) {
    return inbox.WaitFor([which](const WorkerCommand& c) { return c.command_case() == which; });
  }
  const WorkerAssignment assignment;
  Inbox<WorkerCommand> inbox;
  std::unique_ptr<WorkerSession> session;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_INTEGRATION_COORDINATOR_TEST_PEERS_H_
