// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Takes small frames whole, and the headers that follow a large payload.
constexpr size_t kBufferBytes = 16 << 10;

}  // namespace

Link::Link(Connection connection, int64_t generation)
    : rank_(connection.rank),
      socket_(std::move(connection.socket)),
      seed_(connection.seed),
      generation_(generation),
      buffer_(kBufferBytes) {}

absl::Status Link::Ended(int error) {
  if (error == 0 || error == ECONNRESET || error == EPIPE) {
    return absl::UnavailableError("its connection was closed");
  }
  return absl::DeadlineExceededError(std::strerror(error));
}

void Link::Begin(const OutgoingFrame& frame) {
  LS_CHECK(!sending_);
  FrameHeader header = frame.header;
  header.number = ++out_number_;
  header.operation.generation = generation_;
  header.payload_hash = PayloadHash(frame.payload, header.bytes);
  EncodeFrame(header, seed_, out_header_);
  out_payload_ = static_cast<const char*>(frame.payload);
  out_bytes_ = header.bytes;
  sent_ = 0;
  out_data_ = MovesData(header.kind);
  sending_ = true;
}

void Link::Queue(FrameHeader header, std::string payload) {
  header.bytes = static_cast<uint32_t>(payload.size());
  if (!stopped_) queue_.push_back({header, std::move(payload)});
}

void Link::BeginQueued() {
  out_small_ = std::move(queue_.front().payload);
  const FrameHeader header = queue_.front().header;
  queue_.pop_front();
  Begin({header, out_small_.data()});
}

void Link::OwnPayload() {
  if (!sending_ || out_payload_ == out_small_.data()) return;
  out_small_.assign(out_payload_, out_bytes_);
  out_payload_ = out_small_.data();
}

absl::Status Link::Write(bool* moved) {
  while (sending_ && writable_) {
    iovec parts[2];
    int count = 0;
    if (sent_ < kFrameBytes) parts[count++] = {out_header_ + sent_, kFrameBytes - sent_};
    const size_t payload_sent = sent_ < kFrameBytes ? 0 : sent_ - kFrameBytes;
    if (payload_sent < out_bytes_) {
      parts[count++] = {const_cast<char*>(out_payload_) + payload_sent, out_bytes_ - payload_sent};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      writable_ = false;
      return absl::OkStatus();
    }
    if (sent < 0) return Ended(errno);
    *moved = true;
    sent_ += static_cast<size_t>(sent);
    sending_ = sent_ < kFrameBytes + out_bytes_;
  }
  return absl::OkStatus();
}

absl::Status Link::Fill(char* place, size_t bytes, size_t* placed, bool* moved) {
  LS_CHECK_LE(begin_, end_);
  if (rest_error_.has_value()) return Ended(*rest_error_);
  if (begin_ == end_) begin_ = end_ = 0;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec parts[2] = {{place, bytes}, {buffer_.data() + end_, buffer_.size() - end_}};
  const int first = bytes > 0 ? 0 : 1;
  const size_t room = bytes + (buffer_.size() - end_);
  while (true) {
    msghdr message{};
    message.msg_iov = parts + first;
    message.msg_iovlen = static_cast<size_t>(2 - first);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      readable_ = false;
      return absl::OkStatus();
    }
    if (got <= 0) return Ended(got == 0 ? 0 : errno);
    *moved = true;
    const size_t direct = std::min(static_cast<size_t>(got), bytes);
    *placed += direct;
    end_ += static_cast<size_t>(got) - direct;
    // Less than there was room for: the socket is empty, and says so when it is not.
    readable_ = static_cast<size_t>(got) == room;
    return absl::OkStatus();
  }
}

void Link::TakeRest() {
  while (!rest_error_.has_value()) {
    if (buffer_.size() - end_ < kBufferBytes) buffer_.resize(2 * buffer_.size());
    const ssize_t got =
        ::recv(socket_.get(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;  // it has not ended
    if (got <= 0) {
      rest_error_ = got == 0 ? 0 : errno;
    } else {
      end_ += static_cast<size_t>(got);
    }
  }
}

absl::Status Link::HowItEnded() const { return Ended(rest_error_.value_or(0)); }

std::optional<Goodbye> Link::LastWords() const {
  size_t at = begin_;
  uint64_t number = in_number_;
  if (has_header_) {
    const size_t left = in_.bytes - got_;
    if (in_.kind == FrameKind::kGoodbye && at + left <= end_) {
      const std::string read = place_ == nullptr ? "" : std::string(place_, got_);
      return ParseGoodbye(in_, read + std::string(buffer_.data() + at, left));
    }
    at += left;
  }
  while (at + kFrameBytes <= end_) {
    const auto read = DecodeFrame(buffer_.data() + at, seed_, number++, generation_);
    if (!read.ok() || at + kFrameBytes + read->bytes > end_) return std::nullopt;
    at += kFrameBytes;
    if (read->kind == FrameKind::kGoodbye) {
      return ParseGoodbye(*read, std::string(buffer_.data() + at, read->bytes));
    }
    at += read->bytes;
  }
  return std::nullopt;
}

void Link::StopSending() {
  stopped_ = true;
  sending_ = false;
  queue_.clear();
}

absl::StatusOr<const FrameHeader*> Link::ReadHeader(bool* moved) {
  if (has_header_) return &in_;
  while (end_ - begin_ < kFrameBytes) {
    if (!readable_) return nullptr;
    size_t none = 0;
    LS_RETURN_IF_ERROR(Fill(nullptr, 0, &none, moved));
  }
  LS_ASSIGN_OR_RETURN(in_, DecodeFrame(buffer_.data() + begin_, seed_, in_number_, generation_));
  begin_ += kFrameBytes;
  ++in_number_;
  has_header_ = true;
  place_ = nullptr;
  got_ = 0;
  return &in_;
}

absl::StatusOr<bool> Link::ReadPayload(bool* moved) {
  LS_CHECK(has_header_);
  while (got_ < in_.bytes) {
    const size_t left = in_.bytes - got_;
    if (begin_ < end_) {
      const size_t some = std::min(left, end_ - begin_);
      std::memcpy(place_ + got_, buffer_.data() + begin_, some);
      begin_ += some;
      got_ += some;
      continue;
    }
    if (!readable_) return false;
    LS_RETURN_IF_ERROR(Fill(place_ + got_, left, &got_, moved));
  }
  has_header_ = false;
  if (PayloadHash(place_, in_.bytes) != in_.payload_hash) {
    return absl::DataLossError("a frame is damaged: the payload's checksum");
  }
  return true;
}

}  // namespace lockstep
