// SPDX-License-Identifier: Apache-2.0
// A worker's session without a network: keeps what is sent, and the test plays the coordinator.
// Thread-safety: thread-safe, but for what the test calls.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_FAKE_SESSION_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_FAKE_SESSION_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/client/client.h"
#include "worker/control/control_link.h"

namespace lockstep::worker {

class FakeSession : public coordinator::WorkerSession {
 public:
  // What outlives the session, which the link owns.
  struct Wire {
    coordinator::ClientOptions options;
    Callbacks callbacks;
    absl::Mutex mu;
    std::vector<WorkerMessage> sent ABSL_GUARDED_BY(mu);
    bool flushed ABSL_GUARDED_BY(mu) = false;

    std::vector<WorkerMessage> Sent() {
      absl::MutexLock lock(&mu);
      return sent;
    }
    // Blocks until `count` messages were sent.
    void WaitForSent(size_t count) {
      absl::MutexLock lock(&mu);
      const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return sent.size() >= count; };
      mu.Await(absl::Condition(&there));
    }
  };

  explicit FakeSession(Wire* wire) : wire_(wire) {}
  void Send(const WorkerMessage& message) override {
    absl::MutexLock lock(&wire_->mu);
    wire_->sent.push_back(message);
  }
  void SendLatest(int /*kind*/, const WorkerMessage& message) override { Send(message); }
  bool Flush(absl::Duration /*timeout*/) override {
    absl::MutexLock lock(&wire_->mu);
    return wire_->flushed = true;
  }
  void Close(absl::Duration /*timeout*/) override {}

  static ControlLink::Open On(Wire* wire) {
    return [wire](const coordinator::ClientOptions& options, Callbacks callbacks) {
      wire->options = options;
      wire->callbacks = std::move(callbacks);
      return std::make_unique<FakeSession>(wire);
    };
  }

 private:
  Wire* const wire_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_FAKE_SESSION_H_
