// SPDX-License-Identifier: Apache-2.0
// The server's side of an agent's or a worker's bidirectional stream, over gRPC's callback
// interface.
//
// Rules that keep gRPC's contract: one read and one write at a time; Finish is called once, and
// only when no write is under way and no further one starts. The object owns itself until OnDone.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_
#define LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "coordinator/service/hub.h"

namespace lockstep::coordinator {

template <typename Message, typename Command>
class ServerStream : public grpc::ServerBidiReactor<Message, Command>, public Outlet<Command> {
 public:
  // A peer that takes no commands for so long is cut off; it reconnects and is told everything
  // anew.
  static constexpr size_t kMaxQueued = 1000;

  struct Handlers {
    std::function<SessionId(std::shared_ptr<Outlet<Command>>)> add;
    std::function<void(SessionId)> remove;
    std::function<void(SessionId, Message)> said;
  };

  // A stream that reads and says at once. Freed after its end.
  static ServerStream* Start(Handlers handlers) {
    auto stream = std::make_shared<ServerStream>(std::move(handlers));
    ServerStream* raw = stream.get();
    raw->self_ = stream;
    raw->session_ = raw->handlers_.add(stream);
    raw->StartSendInitialMetadata();
    raw->StartRead(&raw->in_);
    return raw;
  }

  explicit ServerStream(Handlers handlers) : handlers_(std::move(handlers)) {}

  void Enqueue(Command command, bool close) override {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    queue_.push_back(std::move(command));
    if (close) ending_ = true;
    if (queue_.size() > kMaxQueued) {
      queue_.clear();
      ending_ = true;
      status_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the peer is too slow");
    }
  }

  void Pump() override {
    bool finish = false;
    {
      absl::MutexLock lock(&mu_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        out_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
      } else if (ending_) {
        finished_ = finish = true;
      } else {
        return;
      }
    }
    if (finish) {
      this->Finish(status_);
    } else {
      this->StartWrite(&out_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    handlers_.said(session_, std::move(in_));
    in_ = Message();
    this->StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) Drop();
    }
    Pump();
  }
  void OnCancel() override { End(); }
  void OnDone() override {
    handlers_.remove(session_);
    self_.reset();  // may free this object
  }

 private:
  // The peer is gone: what is queued for it is of no use.
  void End() {
    {
      absl::MutexLock lock(&mu_);
      Drop();
    }
    Pump();
  }
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    queue_.clear();
    ending_ = true;
  }

  const Handlers handlers_;
  SessionId session_ = 0;
  std::shared_ptr<ServerStream> self_;
  Message in_;
  Command out_;
  grpc::Status status_;

  absl::Mutex mu_;
  std::deque<Command> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;    // finish when the queue is written
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_
