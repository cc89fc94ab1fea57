// SPDX-License-Identifier: Apache-2.0
// Carries out what a SessionMachine says, on the simulated network.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_CLIENT_SESSION_H_
#define LOCKSTEP_TESTS_MACHINES_CLIENT_SESSION_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "coordinator/client/session_machine.h"
#include "tests/machines/connection.h"

namespace lockstep::simulation {

// How a stream reaches a coordinator: the connection, or null when nobody listens now.
template <typename Out, typename In>
using Dial = std::function<std::shared_ptr<Connection<Out, In>>(std::shared_ptr<Process> client,
                                                                typename Pipe<In>::Ends at_client)>;

template <typename Out, typename In>
class ClientSession : public std::enable_shared_from_this<ClientSession<Out, In>> {
 public:
  using Machine = coordinator::SessionMachine<Out, In>;
  struct Callbacks {
    std::function<Out()> hello;
    std::function<void(const In&)> on_command;
    std::function<void(bool connected, const std::string& reason)> on_connection;
    // A stream has taken the message; null: nobody asks.
    std::function<void(const Out&)> on_written;
  };

  ClientSession(std::shared_ptr<Process> process, Dial<Out, In> dial, Callbacks callbacks)
      : process_(process),
        dial_(std::move(dial)),
        callbacks_(std::move(callbacks)),
        machine_([random = &process->timeline().random](int attempt) {
          const int64_t full = std::min<int64_t>(500, int64_t{20} << std::min(attempt, 5));
          return absl::Milliseconds(random->Between(full / 2, full));
        }) {}

  void Begin() { Do(machine_.Begin()); }
  void Send(Out message, int kind = Machine::kNoKind) {
    Do(machine_.Send(std::move(message), kind));
  }
  void Close(absl::Duration timeout) {
    Do(machine_.Close(process()->Now() + timeout, process()->Now()));
  }
  // The process is dead: its kernel ends the connection, if its host still runs.
  void Abandon() {
    if (connection_ == nullptr) return;
    if (process()->host()->up) connection_->EndClient();
    connection_ = nullptr;
  }

 private:
  std::shared_ptr<Process> process() const { return process_.lock(); }

  void Do(typename Machine::Actions actions) {
    for (auto& action : actions) std::visit([this](auto& a) { this->CarryOut(a); }, action);
    ArmTimer();
  }
  // An event of the stream `number`.
  template <typename Event>
  void OnStream(int number, Event event) {
    if (number == stream_) Do(event(machine_));
  }
  void Later(int number, absl::Duration delay,
             std::function<typename Machine::Actions(Machine&)> event) {
    process()->After(delay, [weak = this->weak_from_this(), number, event = std::move(event)] {
      if (const auto self = weak.lock()) self->OnStream(number, event);
    });
  }
  void ArmTimer() {
    const absl::Time at = machine_.wake_at();
    if (at == absl::InfiniteFuture() || at >= armed_) return;
    armed_ = at;
    process()->After(std::max(absl::ZeroDuration(), at - process()->Now()),
                     [weak = this->weak_from_this()] {
                       const auto self = weak.lock();
                       if (self == nullptr) return;
                       self->armed_ = absl::InfiniteFuture();
                       self->Do(self->machine_.Wake(self->process()->Now()));
                     });
  }

  void CarryOut(const coordinator::session_action::Open& open) {
    ++stream_;
    Connect(stream_, open.wait_for_ready, absl::Milliseconds(20));
  }
  void Connect(int number, bool wait, absl::Duration backoff) {
    if (number != stream_ || ended_ == number) return;
    const auto weak = this->weak_from_this();
    typename Pipe<In>::Ends ends;
    ends.arrived = [weak, number](In command) {
      if (const auto self = weak.lock()) self->OnArrived(number, std::move(command));
    };
    ends.ended = [weak, number] {
      if (const auto self = weak.lock()) {
        self->OnStream(number, [](Machine& machine) { return machine.ReadEnded(); });
      }
    };
    connection_ = dial_(process(), std::move(ends));
    if (connection_ != nullptr) {
      connection_->up->Write(callbacks_.hello(), WriteDone(number));
      return Later(number, absl::Milliseconds(1),
                   [this](Machine& machine) { return machine.Up(process()->Now()); });
    }
    if (!wait) {
      return Later(number, absl::Milliseconds(1),
                   [](Machine& machine) { return machine.ReadEnded(); });
    }
    process()->After(process()->random().Between(backoff / 2, backoff), [weak, number, wait,
                                                                         backoff] {
      const auto self = weak.lock();
      const absl::Duration next = std::min(2 * backoff, absl::Duration(absl::Milliseconds(500)));
      if (self != nullptr) self->Connect(number, wait, next);
    });
  }
  void OnArrived(int number, In command) {
    OnStream(number, [&](Machine& machine) { return machine.Received(std::move(command)); });
  }
  std::function<void(bool)> WriteDone(int number) {
    return [weak = this->weak_from_this(), number](bool ok) {
      if (const auto self = weak.lock()) {
        self->OnStream(number, [ok](Machine& machine) { return machine.WriteDone(ok); });
      }
    };
  }
  void CarryOut(coordinator::session_action::Write<Out>& write) {
    std::function<void(bool)> done = WriteDone(stream_);
    if (callbacks_.on_written) {
      done = [weak = this->weak_from_this(), number = stream_, message = write.message,
              done = std::move(done)](bool ok) {
        const auto self = weak.lock();
        if (ok && self != nullptr && number == self->stream_) self->callbacks_.on_written(message);
        done(ok);
      };
    }
    connection_->up->Write(std::move(write.message), std::move(done));
  }
  void CarryOut(const coordinator::session_action::HalfClose&) { connection_->up->Close(); }
  void CarryOut(const coordinator::session_action::End&) {
    ended_ = stream_;
    if (connection_ != nullptr) connection_->EndClient();
    connection_ = nullptr;
    Later(stream_, absl::Microseconds(100), [this](Machine& machine) {
      return machine.Done("the connection is gone", process()->Now());
    });
  }
  void CarryOut(coordinator::session_action::Deliver<In>& deliver) {
    callbacks_.on_command(deliver.command);
  }
  void CarryOut(const coordinator::session_action::Explain&) {}
  void CarryOut(const coordinator::session_action::Announce& announce) {
    callbacks_.on_connection(announce.connected, announce.reason);
  }

  const std::weak_ptr<Process> process_;
  const Dial<Out, In> dial_;
  const Callbacks callbacks_;
  Machine machine_;
  std::shared_ptr<Connection<Out, In>> connection_;
  int stream_ = 0;  // the newest
  int ended_ = 0;
  absl::Time armed_ = absl::InfiniteFuture();
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_CLIENT_SESSION_H_
