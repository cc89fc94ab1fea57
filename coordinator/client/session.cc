// SPDX-License-Identifier: Apache-2.0
// The shell around SessionMachine: one thread for each session carries out what the machine says.
// Callers and gRPC's own threads only feed the machine and wake that thread.
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/client.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/renewal.h"
#include "coordinator/client/route.h"
#include "coordinator/client/session_machine.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// A wait that nothing limits looks up once in so long.
constexpr absl::Duration kLongestWait = absl::Minutes(1);
constexpr absl::Duration kExplainWithin = absl::Seconds(2);

// What the session's thread, its callers and the stream's callbacks share.
template <typename Out, typename In>
class Box {
 public:
  using Machine = SessionMachine<Out, In>;
  using Actions = typename Machine::Actions;

  // Hands the machine an event: `event` is called with it and returns its actions.
  template <typename Event>
  void Feed(Event event) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    for (auto& action : event(machine_)) todo_.push_back(std::move(action));
    changed_.NotifyAll();
  }
  // Returns what is to be done next; waits for it. Empty: the session is through.
  Actions Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    for (;;) {
      const absl::Time now = Clock::Real()->Now();
      if (todo_.empty() && now >= machine_.wake_at()) {
        for (auto& action : machine_.Wake(now)) todo_.push_back(std::move(action));
        changed_.NotifyAll();
      }
      if (!todo_.empty() || machine_.closed()) return std::exchange(todo_, {});
      changed_.WaitFor(&mu_, std::min(machine_.wake_at() - now, kLongestWait));
    }
  }
  bool Flush(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto through = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return machine_.flushed() || machine_.closed();
    };
    return changed_.AwaitFor(&mu_, timeout, through) && machine_.empty();
  }

 private:
  absl::Mutex mu_;
  CondVar changed_;
  Machine machine_ ABSL_GUARDED_BY(mu_){
      [](int attempt) { return absl::Milliseconds(BackoffMillis(attempt)); }};
  Actions todo_ ABSL_GUARDED_BY(mu_);
};

// One stream. Its operations are started by the session's thread alone, its reactions are gRPC's.
template <typename Out, typename In>
class Stream : public grpc::ClientBidiReactor<Out, In> {
 public:
  using Machine = SessionMachine<Out, In>;

  Stream(std::shared_ptr<Box<Out, In>> box, std::shared_ptr<Route> route)
      : box_(std::move(box)),
        route_(std::move(route)),
        way_(route_->Now()),
        stub_(Coordinator::NewStub(way_.channel)) {}

  Coordinator::Stub& stub() { return *stub_; }
  const Route::Way& way() const { return way_; }

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

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) box_->Feed([](Machine& machine) { return machine.Up(Clock::Real()->Now()); });
  }
  void OnReadDone(bool ok) override {
    if (!ok) return box_->Feed([](Machine& machine) { return machine.ReadEnded(); });
    box_->Feed([this](Machine& machine) { return machine.Received(std::move(in_)); });
    in_ = In();
    this->StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    box_->Feed([ok](Machine& machine) { return machine.WriteDone(ok); });
  }
  void OnDone(const grpc::Status& status) override {
    // The owner may free this object as soon as the machine has heard of it.
    const std::shared_ptr<Box<Out, In>> box = box_;
    route_->Ended(way_, status, context_);
    const std::string reason =
        status.ok() ? "the coordinator ended the connection" : status.error_message();
    const bool ended = status.ok() || status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
                       status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    box->Feed([&](Machine& machine) { return machine.Done(reason, Clock::Real()->Now(), ended); });
  }

 private:
  const std::shared_ptr<Box<Out, In>> box_;
  const std::shared_ptr<Route> route_;
  const Route::Way way_;
  const std::unique_ptr<Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  In in_;
  Out out_;
};

template <typename Out, typename In>
class GrpcSession : public Session<Out, In> {
 public:
  using Callbacks = typename Session<Out, In>::Callbacks;
  using OpenStream = void (*)(Coordinator::Stub&, grpc::ClientContext*,
                              grpc::ClientBidiReactor<Out, In>*);

  GrpcSession(const ClientOptions& options, const char* name, Callbacks callbacks, OpenStream open)
      : options_(WithCell(options)),
        callbacks_(std::move(callbacks)),
        open_(open),
        route_(std::make_shared<Route>(options_)),
        renewal_(IsRenewable(options_)
                     ? std::make_unique<Renewal>(options_, route_, callbacks_.on_renewed)
                     : nullptr),
        thread_(name, [this] { Run(); }) {}
  ~GrpcSession() override { Close(absl::ZeroDuration()); }

  void Send(const Out& message) override { SendLatest(Machine::kNoKind, message); }
  void SendLatest(int kind, const Out& message) override {
    box_->Feed([&](Machine& machine) { return machine.Send(message, kind); });
  }
  bool Flush(absl::Duration timeout) override { return box_->Flush(timeout); }
  void Close(absl::Duration timeout) override {
    const absl::Time now = Clock::Real()->Now();
    box_->Feed([&](Machine& machine) { return machine.Close(now + timeout, now); });
    thread_.Join();
    renewal_.reset();
  }

 private:
  using Machine = SessionMachine<Out, In>;

  void Run() {
    box_->Feed([](Machine& machine) { return machine.Begin(); });
    for (;;) {
      const typename Machine::Actions actions = box_->Take();
      if (actions.empty()) return;
      for (const auto& action : actions) {
        std::visit([this](const auto& a) { this->CarryOut(a); }, action);
      }
    }
  }

  void CarryOut(const session_action::Open& open) {
    stream_ = std::make_unique<Stream<Out, In>>(box_, route_);
    ShowToken(options_, &stream_->context());
    stream_->context().set_wait_for_ready(open.wait_for_ready && !route_->several());
    open_(stream_->stub(), &stream_->context(), stream_.get());
    stream_->Start();
    stream_->Write(callbacks_.hello());
  }
  void CarryOut(const session_action::Write<Out>& write) { stream_->Write(write.message); }
  void CarryOut(const session_action::HalfClose&) { stream_->StartWritesDone(); }
  void CarryOut(const session_action::End& end) {
    if (end.cancel) stream_->context().TryCancel();
    stream_->RemoveHold();
  }
  void CarryOut(const session_action::Deliver<In>& deliver) {
    callbacks_.on_command(deliver.command);
  }
  void CarryOut(const session_action::Announce& announce) {
    if (announce.connected && renewal_ != nullptr) renewal_->Connected();
    if (!callbacks_.on_connection) return;
    const std::string better = announce.explain ? Explanation() : "";
    callbacks_.on_connection(announce.connected, better.empty() ? announce.reason : better);
  }
  void CarryOut(const session_action::Explain&) {
    const std::string why = Explanation();
    if (why.empty()) return;
    // gRPC would go on to make handshakes that come to nothing, two a second.
    box_->Feed([](Machine& machine) { return machine.Hopeless(); });
    route_->Forget();
    if (callbacks_.on_connection) callbacks_.on_connection(false, why);
  }
  std::string Explanation() const {
    return std::string(ExplainConnection(route_->Now().options, kExplainWithin).message());
  }

  const ClientOptions options_;
  const Callbacks callbacks_;
  const OpenStream open_;
  const std::shared_ptr<Route> route_;
  std::unique_ptr<Renewal> renewal_;  // null: there is nothing to renew
  const std::shared_ptr<Box<Out, In>> box_ = std::make_shared<Box<Out, In>>();
  std::unique_ptr<Stream<Out, In>> stream_;  // the newest one; the thread's own
  Thread thread_;                            // last: starts when the rest is there
};

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
