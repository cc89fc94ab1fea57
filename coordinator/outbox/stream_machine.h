// SPDX-License-Identifier: Apache-2.0
// The server's side of one agent's or worker's stream, as a pure machine: what is queued for it,
// and whether to write, to finish or to wait. No gRPC, no lock, no time: service/stream.h is the
// shell around it, and a simulator drives it as well.
//
// Commands are written one at a time, in the order of the steps that made them, which is that of
// the journal (outbox.h). One that waits goes when a newer one makes it void (Supersedes): of whole
// desired states, which are large, one is kept. A peer that takes none for too long is cut off: it
// reconnects and is told everything anew. When the peer is gone, what is queued for it is dropped.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_STREAM_MACHINE_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_STREAM_MACHINE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "coordinator/core/effects.h"

namespace lockstep::coordinator {

template <typename Command>
class StreamMachine {
 public:
  static constexpr size_t kMaxQueued = 1000;

  // What to do now: at most one of these.
  struct Next {
    std::optional<Command> write;  // WriteDone follows
    bool finish = false;           // nothing follows
    bool too_slow = false;         // with `finish`: why
  };

  // Queues `command` and, with `close`, the end of the stream.
  void Enqueue(Command command, bool close) {
    if (ending_) return;
    std::erase_if(queue_, [&](const Command& waiting) { return Supersedes(command, waiting); });
    queue_.push_back(std::move(command));
    ending_ = close;
    if (queue_.size() <= kMaxQueued) return;
    queue_.clear();
    ending_ = too_slow_ = true;
  }
  // Returns what can be done now, if anything.
  Next TakeNext() {
    Next next;
    if (writing_ || finished_) return next;
    if (!queue_.empty()) {
      next.write = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
    } else if (ending_) {
      finished_ = next.finish = true;
      next.too_slow = too_slow_;
    }
    return next;
  }
  // The write that was asked for is through, or the peer does not take it.
  void WriteDone(bool ok) {
    writing_ = false;
    if (!ok) PeerGone();
  }
  // It reads no more, or its connection is over.
  void PeerGone() {
    queue_.clear();
    ending_ = true;
  }

 private:
  std::deque<Command> queue_;
  bool writing_ = false;
  bool ending_ = false;    // finish when the queue is written
  bool finished_ = false;  // it was told to
  bool too_slow_ = false;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_STREAM_MACHINE_H_
