// SPDX-License-Identifier: Apache-2.0
// One thread for each session: it opens the stream, writes what is queued and calls back with what
// arrives. gRPC's own threads only put things into the shared box and wake it.
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/client.h"
#include "coordinator/client/grpc_status.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// A wait that nothing limits looks up once in so long.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

// What the session's thread, its callers and the stream's callbacks share.
template <typename Out, typename In>
struct Box {
  struct Queued {
    int kind = -1;  // -1: never replaced
    Out message;
  };
  absl::Mutex mu;
  CondVar changed;  // told of every change of what follows
  std::deque<Queued> outgoing ABSL_GUARDED_BY(mu);
  std::deque<In> incoming ABSL_GUARDED_BY(mu);
  bool connected ABSL_GUARDED_BY(mu) = false;  // the stream's first metadata came
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool write_failed ABSL_GUARDED_BY(mu) = false;
  bool read_ended ABSL_GUARDED_BY(mu) = false;
  bool done ABSL_GUARDED_BY(mu) = false;
  grpc::Status status ABSL_GUARDED_BY(mu);
  bool closing ABSL_GUARDED_BY(mu) = false;
  absl::Time close_by ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  bool ended ABSL_GUARDED_BY(mu) = false;  // the thread is through
};

// One stream. Its operations are started by the session's thread alone, its reactions are gRPC's.
template <typename Out, typename In>
class Stream : public grpc::ClientBidiReactor<Out, In> {
 public:
  explicit Stream(std::shared_ptr<Box<Out, In>> box) : box_(std::move(box)) {}

  grpc::ClientContext& context() { return context_; }

  void Start() {
    this->AddHold();  // kept while the session's thread may start writes
    this->StartRead(&in_);
    this->StartCall();
  }
  void Write(Out message) {
    out_ = std::move(message);
    this->StartWrite(&out_);
  }
  // The message of the write that failed.
  Out TakeUnsent() { return std::move(out_); }

  void OnReadInitialMetadataDone(bool ok) override {
    absl::MutexLock lock(&box_->mu);
    box_->connected = ok;
    box_->changed.NotifyAll();
  }
  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&box_->mu);
      box_->changed.NotifyAll();
      if (!ok) {
        box_->read_ended = true;
        return;
      }
      box_->incoming.push_back(std::move(in_));
    }
    this->StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&box_->mu);
    box_->writing = false;
    box_->write_failed |= !ok;
    box_->changed.NotifyAll();
  }
  void OnDone(const grpc::Status& status) override {
    // The owner may free this object as soon as it sees `done`.
    const std::shared_ptr<Box<Out, In>> box = box_;
    absl::MutexLock lock(&box->mu);
    box->status = status;
    box->done = true;
    box->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Box<Out, In>> box_;
  grpc::ClientContext context_;
  In in_;
  Out out_;
};

template <typename Out, typename In>
class GrpcSession : public Session<Out, In> {
 public:
  using Callbacks = typename Session<Out, In>::Callbacks;
  using Open = void (*)(Coordinator::Stub&, grpc::ClientContext*,
                        grpc::ClientBidiReactor<Out, In>*);

  GrpcSession(const ClientOptions& options, const char* name, Callbacks callbacks, Open open)
      : options_(options),
        callbacks_(std::move(callbacks)),
        open_(open),
        stub_(Coordinator::NewStub(MakeChannel(options.address))),
        thread_(name, [this] { Run(); }) {}
  ~GrpcSession() override { Close(absl::ZeroDuration()); }

  void Send(const Out& message) override {
    absl::MutexLock lock(&box_->mu);
    box_->outgoing.push_back({-1, message});
    box_->changed.NotifyAll();
  }

  void SendLatest(int kind, const Out& message) override {
    absl::MutexLock lock(&box_->mu);
    for (auto& queued : box_->outgoing) {
      if (queued.kind != kind) continue;
      queued.message = message;
      return;
    }
    box_->outgoing.push_back({kind, message});
    box_->changed.NotifyAll();
  }

  bool Flush(absl::Duration timeout) override {
    absl::MutexLock lock(&box_->mu);
    auto empty = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return (box_->outgoing.empty() && !box_->writing && !box_->write_failed) || box_->ended;
    };
    return box_->changed.AwaitFor(&box_->mu, timeout, empty) && box_->outgoing.empty();
  }

  void Close(absl::Duration timeout) override {
    {
      absl::MutexLock lock(&box_->mu);
      box_->closing = true;
      box_->close_by = std::min(box_->close_by, Clock::Real()->Now() + timeout);
      box_->changed.NotifyAll();
    }
    thread_.Join();
  }

 private:
  using Shared = Box<Out, In>;

  void Run();
  // One stream from its opening to its end. The first try fails at once when nobody listens, later
  // ones go through as soon as somebody does. Returns whether it was up at all.
  bool RunStream(int attempt, std::string& reason);
  // Runs callbacks and starts writes until the stream is to end. Returns whether it was up.
  bool Serve(Stream<Out, In>& stream);
  void DeliverIncoming();

  const ClientOptions options_;
  const Callbacks callbacks_;
  const Open open_;
  const std::unique_ptr<Coordinator::Stub> stub_;
  const std::shared_ptr<Shared> box_ = std::make_shared<Shared>();
  bool told_ = false;  // the user has heard of the connection; the thread's own
  Thread thread_;      // last: starts when the rest is there
};

template <typename Out, typename In>
void GrpcSession<Out, In>::Run() {
  for (int attempt = 0;; ++attempt) {
    std::string reason;
    if (RunStream(attempt, reason)) attempt = 0;
    Shared& box = *box_;
    absl::MutexLock lock(&box.mu);
    const bool closing =
        box.changed.AwaitFor(&box.mu, absl::Milliseconds(BackoffMillis(attempt)),
                             [&box]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return box.closing; });
    if (!closing) continue;
    // A closing session still hands over what is queued, if that is possible in time.
    if (box.outgoing.empty() || Clock::Real()->Now() >= box.close_by) {
      box.ended = true;
      box.changed.NotifyAll();
      return;
    }
  }
}

template <typename Out, typename In>
bool GrpcSession<Out, In>::RunStream(int attempt, std::string& reason) {
  {
    absl::MutexLock lock(&box_->mu);
    if (box_->closing && (box_->outgoing.empty() || Clock::Real()->Now() >= box_->close_by))
      return false;
    box_->connected = box_->writing = box_->write_failed = box_->read_ended = box_->done = false;
    box_->incoming.clear();
  }
  Stream<Out, In> stream(box_);
  if (!options_.token.empty()) stream.context().AddMetadata(kTokenKey, options_.token);
  stream.context().set_wait_for_ready(attempt > 0);
  open_(*stub_, &stream.context(), &stream);
  {
    absl::MutexLock lock(&box_->mu);
    box_->writing = true;
  }
  stream.Start();
  stream.Write(callbacks_.hello());
  const bool was_up = Serve(stream);
  absl::MutexLock lock(&box_->mu);
  reason =
      box_->status.ok() ? "the coordinator ended the connection" : box_->status.error_message();
  box_->mu.Unlock();
  // Of attempts that fail, only the very first is told: the rest would say the same.
  if ((was_up || !told_) && callbacks_.on_connection) callbacks_.on_connection(false, reason);
  told_ = true;
  box_->mu.Lock();
  return was_up;
}

template <typename Out, typename In>
void GrpcSession<Out, In>::DeliverIncoming() {
  std::deque<In> batch;
  {
    absl::MutexLock lock(&box_->mu);
    batch.swap(box_->incoming);
  }
  for (const In& command : batch) callbacks_.on_command(command);
}

template <typename Out, typename In>
bool GrpcSession<Out, In>::Serve(Stream<Out, In>& stream) {
  Shared& box = *box_;
  bool announced = false;
  bool half_closed = false;
  int in_flight = -1;  // kind of the message being written; -1 also for the hello
  bool hello_in_flight = true;
  for (;;) {
    std::optional<typename Shared::Queued> next;
    bool announce = false;
    bool end = false;
    {
      absl::MutexLock lock(&box.mu);
      const absl::Time close_by = box.close_by;
      auto wake = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(box.mu) {
        return box.close_by != close_by || !box.incoming.empty() || box.read_ended ||
               box.write_failed || box.done || (box.connected && !announced) ||
               (!box.writing && !box.outgoing.empty() && !half_closed) ||
               (box.closing && !half_closed && !box.writing && box.outgoing.empty());
      };
      while (!wake() && Clock::Real()->Now() < close_by) {
        box.changed.WaitFor(&box.mu, std::min(close_by - Clock::Real()->Now(), kLongestWait));
      }
      announce = box.connected && !announced;
      end = box.read_ended || box.write_failed || box.done ||
            (box.closing && Clock::Real()->Now() >= box.close_by);
      if (!end && !box.writing && !half_closed) {
        if (!box.outgoing.empty()) {
          next = std::move(box.outgoing.front());
          box.outgoing.pop_front();
          box.writing = true;
        } else if (box.closing) {
          half_closed = true;
          box.mu.Unlock();
          stream.StartWritesDone();
          box.mu.Lock();
        }
      }
    }
    if (next) {
      in_flight = next->kind;
      hello_in_flight = false;
      stream.Write(std::move(next->message));
    }
    if (announce) {
      announced = true;
      if (callbacks_.on_connection) callbacks_.on_connection(true, "");
    }
    DeliverIncoming();
    if (!end) continue;
    absl::MutexLock lock(&box.mu);
    const bool cancel = !box.read_ended;  // else the server ended it, and its status is kept
    box.mu.Unlock();
    if (cancel) stream.context().TryCancel();
    stream.RemoveHold();
    box.mu.Lock();
    box.mu.Await(absl::Condition(&box.done));
    if (box.write_failed && !hello_in_flight) {
      box.outgoing.push_front({in_flight, stream.TakeUnsent()});
    }
    return announced;
  }
}

}  // namespace

std::unique_ptr<AgentSession> OpenAgentSession(const ClientOptions& options,
                                               AgentSession::Callbacks callbacks) {
  return std::make_unique<GrpcSession<AgentMessage, AgentCommand>>(
      options, "agent-session", std::move(callbacks),
      [](Coordinator::Stub& stub, grpc::ClientContext* context,
         grpc::ClientBidiReactor<AgentMessage, AgentCommand>* reactor) {
        stub.async()->AgentSession(context, reactor);
      });
}

std::unique_ptr<WorkerSession> OpenWorkerSession(const ClientOptions& options,
                                                 WorkerSession::Callbacks callbacks) {
  return std::make_unique<GrpcSession<WorkerMessage, WorkerCommand>>(
      options, "worker-session", std::move(callbacks),
      [](Coordinator::Stub& stub, grpc::ClientContext* context,
         grpc::ClientBidiReactor<WorkerMessage, WorkerCommand>* reactor) {
        stub.async()->WorkerSession(context, reactor);
      });
}

}  // namespace lockstep::coordinator
