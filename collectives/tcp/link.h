// SPDX-License-Identifier: Apache-2.0
// One authenticated connection to a rank of another node, without waiting: what can be written is
// written from where it lies, what has come is read to where it shall lie.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_TCP_LINK_H_
#define LOCKSTEP_COLLECTIVES_TCP_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/tcp/joiner.h"
#include "collectives/tcp/wire.h"

namespace lockstep {

// A frame to be sent. The payload stays as it is until it is gone.
struct OutgoingFrame {
  FrameHeader header;  // number and hash are filled in
  const void* payload = nullptr;
};

class Link {
 public:
  Link(Connection connection, int64_t generation);

  int rank() const { return rank_; }
  int socket() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  // Closes it: what has come and was not read is lost.
  void Close() { socket_.reset(); }

  // ---- sending ----
  // Whether a frame that was begun is not gone yet.
  bool sending() const { return sending_; }
  // Returns whether the frame that was begun last carries what a call moves.
  bool sends_data() const { return out_data_; }
  // Begins a frame. REQUIRES: !sending().
  void Begin(const OutgoingFrame& frame);
  // The same for a small one with its payload copied, after those that were queued before.
  void Queue(FrameHeader header, std::string payload);
  bool HasQueued() const { return !queue_.empty(); }
  // Begins the first of these. REQUIRES: !sending().
  void BeginQueued();
  // Copies what is left of the payload of a frame that was begun is copied: its memory is free
  // after this.
  void OwnPayload();
  // Writes what the socket takes. `moved` becomes true when it took something. Errors: Unavailable
  // when the peer has closed the connection, DeadlineExceeded when the network lost it.
  absl::Status Write(bool* moved);

  // ---- receiving ----
  // Reads a header, if there is none yet and it has come. Null: not yet. Errors: DataLoss, and as
  // Write.
  absl::StatusOr<const FrameHeader*> ReadHeader(bool* moved);
  // Where the payload of the header shall go.
  void Place(char* place) { place_ = place; }
  bool placed() const { return place_ != nullptr; }
  // Reads the payload to its place; true when it is whole and its checksum right. The next
  // ReadHeader reads the next one. Errors: as ReadHeader.
  absl::StatusOr<bool> ReadPayload(bool* moved);

  // ---- when the peer has closed its end ----
  // Takes in all that is left of the connection. What was read ahead is given out as ever.
  void TakeRest();
  // After TakeRest: how the connection ended, as Write's errors; Unavailable, too, when it has not.
  absl::Status HowItEnded() const;
  // After TakeRest: the goodbye at the end of what has not been given out; empty: there is none.
  std::optional<Goodbye> LastWords() const;
  // Nothing more is sent: what was to be goes nowhere.
  void StopSending();
  bool sends() const { return !stopped_; }

  // The socket, which had no more when it was read last, has something again.
  void NoteReadable() { readable_ = true; }
  // False: the socket took no more when it was written to last (until NoteWritable).
  bool writable() const { return writable_; }
  // It takes something again.
  void NoteWritable() { writable_ = true; }

  // ---- what the peer told ----
  bool said_goodbye = false;
  bool last_words_read = false;
  int64_t left_after = 0;  // the newest call that it had completed when it said goodbye
  int64_t committed = -1;
  Operation heard;           // the newest call that it made
  Operation completed;       // the newest of them that this rank completed too
  int waiting_for = -1;      // in the call waiting_call
  int64_t waiting_call = 0;  // its sequence
  std::string own;           // the payload of a frame that belongs to no call

  // Messages (Send) that were not received yet.
  struct Message {
    FrameHeader header;
    std::vector<char> payload;
    bool whole = false;
  };
  std::deque<Message> inbox;
  size_t inbox_bytes = 0;

 private:
  static absl::Status Ended(int error);
  // Reads to the buffer, and before that to `place` when there is one.
  absl::Status Fill(char* place, size_t bytes, size_t* placed, bool* moved);

  const int rank_;
  UniqueFd socket_;
  const uint64_t seed_;
  const int64_t generation_;

  bool writable_ = true;
  bool stopped_ = false;
  bool sending_ = false;
  bool out_data_ = false;
  char out_header_[kFrameBytes];
  const char* out_payload_ = nullptr;
  size_t out_bytes_ = 0;  // of the payload
  size_t sent_ = 0;       // of both
  uint64_t out_number_ = 0;
  struct Small {
    FrameHeader header;
    std::string payload;
  };
  std::deque<Small> queue_;
  std::string out_small_;

  bool readable_ = true;
  std::optional<int> rest_error_;  // how the connection ended, when TakeRest has read to its end
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what lies in the buffer
  bool has_header_ = false;
  FrameHeader in_;
  uint64_t in_number_ = 1;
  char* place_ = nullptr;
  size_t got_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_LINK_H_
