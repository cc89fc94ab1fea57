// SPDX-License-Identifier: Apache-2.0
// A TCP connection that carries one stream: two pipes, each in order until it breaks. A packet that
// does not get through is sent again; what a broken connection carried may have arrived or not. A
// side that ends it lets what is on its way arrive, then the end. Nobody is told of a host that
// vanished: both sides find out by keepalive (coordinator/client/channel.h).
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_CONNECTION_H_
#define LOCKSTEP_TESTS_MACHINES_CONNECTION_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tests/machines/host.h"

namespace lockstep::simulation {

// Messages that a pipe takes before the writer waits.
inline constexpr size_t kWindow = 32;
inline constexpr absl::Duration kKeepalive = absl::Seconds(10);

template <typename T>
class Pipe : public std::enable_shared_from_this<Pipe<T>> {
 public:
  struct Ends {
    std::function<void(T)> arrived;
    std::function<void()> ended;  // the other side ended it, after all that it sent
  };

  Pipe(Timeline* timeline, std::shared_ptr<Process> from, std::shared_ptr<Process> to, Ends ends)
      : timeline_(timeline), from_(std::move(from)), to_(std::move(to)), ends_(std::move(ends)) {}

  // `written(ok)` when the pipe has taken it.
  void Write(T message, std::function<void(bool)> written) {
    // A reader that is gone is known by the reset that answers what is written, sooner or later.
    const bool refused = closed_ || (dropped_ && timeline_->Even());
    if (refused) return from_->After(absl::ZeroDuration(), [written] { written(false); });
    queue_.push_back(std::move(message));
    if (queue_.size() > kWindow) {
      waiting_ = std::move(written);
    } else {
      from_->After(absl::Microseconds(10), [written = std::move(written)] { written(true); });
    }
    Schedule();
  }
  // The writer ends: the reader hears of it after the rest, if anything arrives at all.
  void Close() {
    if (closed_) return;
    closed_ = true;
    Refuse();
    Schedule();
  }
  // Nothing arrives any more; the reader is gone or has given up.
  void Drop() {
    dropped_ = true;
    Refuse();
  }
  bool dropped() const { return dropped_; }
  // So many more messages arrive. The next one and what follows it do not: `broken` is called.
  void BreakAfter(size_t messages, std::function<void()> broken) {
    until_break_ = messages;
    on_break_ = std::move(broken);
  }

 private:
  void Refuse() {
    if (!waiting_) return;
    from_->After(absl::ZeroDuration(),
                 [written = *std::exchange(waiting_, {})] { written(false); });
  }
  void Schedule() {
    if (scheduled_ || dropped_) return;
    scheduled_ = true;
    retry_ = absl::Milliseconds(100);
    In(Latency(timeline_->random, *from_->host(), *to_->host()));
  }
  void In(absl::Duration delay) {
    timeline_->In(delay, [self = this->shared_from_this()] { self->Deliver(); });
  }
  void Deliver() {
    if (dropped_ || broken_) return;
    if (!Carries(*from_->host(), *to_->host(), timeline_->now())) {
      retry_ = std::min(2 * retry_, absl::Duration(absl::Seconds(2)));
      return In(retry_);
    }
    scheduled_ = false;
    // What lies ready arrives with it.
    for (size_t batch = queue_.size(); batch > 0; --batch) {
      if (until_break_ && (*until_break_)-- == 0) {
        broken_ = true;
        return on_break_();
      }
      to_->Happen([self = this->shared_from_this(), message = std::move(queue_.front())]() mutable {
        if (!self->dropped_) self->ends_.arrived(std::move(message));
      });
      queue_.pop_front();
    }
    if (waiting_) {
      from_->After(absl::ZeroDuration(),
                   [written = *std::exchange(waiting_, {})] { written(true); });
    }
    if (!closed_ || end_told_) return;
    end_told_ = true;
    to_->Happen([self = this->shared_from_this()] {
      if (!self->dropped_) self->ends_.ended();
    });
  }

  Timeline* const timeline_;
  const std::shared_ptr<Process> from_;
  const std::shared_ptr<Process> to_;
  const Ends ends_;
  std::deque<T> queue_;
  std::optional<std::function<void(bool)>> waiting_;
  bool scheduled_ = false;
  bool closed_ = false;
  bool dropped_ = false;
  bool end_told_ = false;
  absl::Duration retry_;
  // A fault that is to come.
  std::optional<size_t> until_break_;
  std::function<void()> on_break_;
  bool broken_ = false;
};

// What a network fault may break.
class Breakable {
 public:
  virtual ~Breakable() = default;
  virtual const Process& client() const = 0;
  virtual const Process& server() const = 0;
  // Both sides give it up, each at a time of its own; or one of them alone.
  virtual void GiveUp() = 0;
  virtual void LoseClient() = 0;
  virtual void LoseServer() = 0;
};

template <typename Up, typename Down>
class Connection : public Breakable, public std::enable_shared_from_this<Connection<Up, Down>> {
 public:
  std::shared_ptr<Pipe<Up>> up;
  std::shared_ptr<Pipe<Down>> down;

  Connection(Timeline* timeline, std::shared_ptr<Process> client, std::shared_ptr<Process> server)
      : timeline_(timeline), client_(std::move(client)), server_(std::move(server)) {}

  void Open(typename Pipe<Up>::Ends at_server, typename Pipe<Down>::Ends at_client) {
    server_lost_ = at_server.ended;
    client_lost_ = at_client.ended;
    up = std::make_shared<Pipe<Up>>(timeline_, client_, server_, std::move(at_server));
    down = std::make_shared<Pipe<Down>>(timeline_, server_, client_, std::move(at_client));
  }
  // One side ends it, or its process died: what it sent still arrives.
  void EndClient() {
    up->Close();
    down->Drop();
  }
  void EndServer() {
    down->Close();
    up->Drop();
  }
  const Process& client() const override { return *client_; }
  const Process& server() const override { return *server_; }
  void GiveUp() override {
    LoseClient();
    LoseServer();
  }
  void LoseClient() override {
    if (!down->dropped()) Lose(*client_, client_lost_);
  }
  void LoseServer() override {
    if (!up->dropped()) Lose(*server_, server_lost_);
  }

 private:
  void Lose(Process& process, const std::function<void()>& lost) {
    process.After(timeline_->random.Between(absl::ZeroDuration(), absl::Seconds(2)), lost);
  }

  Timeline* const timeline_;
  const std::shared_ptr<Process> client_;
  const std::shared_ptr<Process> server_;
  std::function<void()> client_lost_;
  std::function<void()> server_lost_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_CONNECTION_H_
