// SPDX-License-Identifier: Apache-2.0
// The server's side of an agent's or a worker's bidirectional stream, over gRPC's callback
// interface: the shell around StreamMachine.
//
// Rules that keep gRPC's contract: one read and one write at a time; Finish is called once, and
// only when no write is under way and no further one starts. The object owns itself until OnDone.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_
#define LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "coordinator/outbox/stream_machine.h"
#include "coordinator/service/hub.h"

namespace lockstep::coordinator {

// Puts in its place what many are told at once and which is large: it is not copied for each of
// them, and only read, but lent to the command until that is written.
inline void Lend(ToWorker& message) {
  if (!message.generation) return;
  message.command.unsafe_arena_set_allocated_generation(
      const_cast<Generation*>(message.generation.get()));
}
// As for a worker: the specs of its jobs.
inline void Lend(ToAgent& message) {
  for (size_t i = 0; i < message.specs.size(); ++i) {
    message.command.mutable_desired()
        ->mutable_workers(static_cast<int>(i))
        ->unsafe_arena_set_allocated_spec(const_cast<JobSpec*>(message.specs[i].get()));
  }
}
// Takes out of the command what it was lent.
inline void TakeBack(ToWorker& message) {
  if (message.generation) message.command.unsafe_arena_release_generation();
}
// As for a worker.
inline void TakeBack(ToAgent& message) {
  for (size_t i = 0; i < message.specs.size(); ++i) {
    message.command.mutable_desired()
        ->mutable_workers(static_cast<int>(i))
        ->unsafe_arena_release_spec();
  }
}

// The command that is being written.
template <typename Outbound>
class Written {
 public:
  ~Written() { Clear(); }
  // Sets what is to be written next. REQUIRES: nothing is being written.
  void Set(Outbound outbound) {
    Clear();
    outbound_ = std::move(outbound);
    Lend(outbound_);
  }
  // It is written: gives back what it was lent.
  void Clear() {
    TakeBack(outbound_);
    outbound_ = Outbound();
  }
  const decltype(Outbound::command)& command() const { return outbound_.command; }

 private:
  Outbound outbound_;
};

// What is told stays as small as it came from the core until it is written.
template <typename Message, typename Outbound>
class ServerStream : public grpc::ServerBidiReactor<Message, decltype(Outbound::command)>,
                     public Outlet<Outbound> {
 public:
  using Command = decltype(Outbound::command);
  struct Handlers {
    std::function<SessionId(std::shared_ptr<Outlet<Outbound>>)> add;
    std::function<void(SessionId)> remove;
    std::function<void(SessionId, Message)> said;
    // Each command as it is written; null: nobody listens.
    std::function<void(const Command&)> tells = nullptr;
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

  void Enqueue(Outbound outbound) override {
    absl::MutexLock lock(&mu_);
    const bool close = outbound.close;
    machine_.Enqueue(std::move(outbound), close);
  }

  void WriteNext() override {
    typename StreamMachine<Outbound>::Next next;
    {
      absl::MutexLock lock(&mu_);
      next = machine_.TakeNext();
      if (next.write) out_.Set(*std::move(next.write));
    }
    if (next.finish) {
      this->Finish(next.too_slow
                       ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the peer is too slow")
                       : grpc::Status::OK);
    } else if (next.write) {
      if (handlers_.tells) handlers_.tells(out_.command());
      this->StartWrite(&out_.command());
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
      out_.Clear();
      machine_.WriteDone(ok);
    }
    WriteNext();
  }
  void OnCancel() override { End(); }
  void OnDone() override {
    handlers_.remove(session_);
    self_.reset();  // may free this object
  }

 private:
  void End() {
    {
      absl::MutexLock lock(&mu_);
      machine_.PeerGone();
    }
    WriteNext();
  }

  const Handlers handlers_;
  SessionId session_ = 0;
  std::shared_ptr<ServerStream> self_;
  Message in_;
  Written<Outbound> out_;

  absl::Mutex mu_;
  StreamMachine<Outbound> machine_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_STREAM_H_
