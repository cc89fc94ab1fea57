// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl_comm.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "collectives/reduce.h"
#include "common/check.h"
#include "tests/emulation/fake_nccl_faults.h"

namespace lockstep::fake_nccl {
namespace {

DType DTypeOf(NcclType type) {
  switch (type) {
    case kNcclUint8:
      return DType::kUInt8;
    case kNcclInt32:
      return DType::kInt32;
    case kNcclInt64:
      return DType::kInt64;
    case kNcclFloat16:
      return DType::kFloat16;
    case kNcclFloat32:
      return DType::kFloat32;
    case kNcclFloat64:
      return DType::kFloat64;
    case kNcclBfloat16:
      return DType::kBFloat16;
  }
  LS_CHECK(false) << "type " << static_cast<int>(type);
  return DType::kUInt8;
}

size_t BytesOf(const Call& call) { return call.count * SizeOf(DTypeOf(call.type)); }

}  // namespace

Comm::Comm(Endpoint* endpoint, Way way, int world, int rank)
    : endpoint_(endpoint),
      way_(std::move(way)),
      world_(world),
      rank_(rank),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      out_(static_cast<size_t>(world)),
      mail_(static_cast<size_t>(world)) {
  LS_CHECK(wake_.valid());
  endpoint_->Register(way_.name, rank_,
                      [this](UniqueFd socket, int from) { Accept(std::move(socket), from); });
  server_ = std::thread([this] { Serve(); });
  worker_ = std::thread([this] { Work(); });
}

Comm::~Comm() {
  endpoint_->Forget(way_.name, rank_);
  server_.join();
  worker_.join();
}

std::vector<std::string> Comm::Addresses() {
  const std::lock_guard lock(mu_);
  return connected_ ? way_.addresses : std::vector<std::string>();
}

bool Comm::Ended() {
  const std::lock_guard lock(mu_);
  return ended_;
}

void Comm::Wake() { LS_CHECK_EQ(::eventfd_write(wake_.get(), 1), 0); }

void Comm::Accept(UniqueFd socket, int from) {
  const std::lock_guard lock(mu_);
  adopted_.push_back({std::move(socket), from, ""});
  ++arrived_;
  changed_.notify_all();
  Wake();
}

NcclResult Comm::State() {
  const std::lock_guard lock(mu_);
  if (error_ != kNcclSuccess) return error_;
  if (ended_) return busy_ > 0 ? kNcclInProgress : kNcclSuccess;
  return connected_ && busy_ == 0 ? kNcclSuccess : kNcclInProgress;
}

void Comm::Submit(std::vector<Call> calls) {
  const std::lock_guard lock(mu_);
  ++busy_;
  submitted_.push_back(std::move(calls));
  changed_.notify_all();
}

void Comm::End() {
  {
    const std::lock_guard lock(mu_);
    ended_ = true;
    changed_.notify_all();
  }
  Wake();
}

void Comm::Fail(NcclResult error) {
  const std::lock_guard lock(mu_);
  error_ = error;
}

void Comm::Work() {
  if (!ConnectAll()) return;
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !submitted_.empty(); });
    if (submitted_.empty()) return;
    const std::vector<Call> calls = std::move(submitted_.front());
    submitted_.pop_front();
    if (!ended_) {
      lock.unlock();
      Execute(calls);
      lock.lock();
    }
    --busy_;
  }
}

bool Comm::ConnectAll() {
  const auto ended = [this] { return Ended(); };
  if (way_.addresses.empty()) {
    way_.addresses = endpoint_->Meet(way_.root, way_.name, world_, rank_, ended);
  }
  for (int peer = 0; peer < world_ && !way_.addresses.empty(); ++peer) {
    if (peer == rank_) continue;
    const auto to = static_cast<size_t>(peer);
    out_[to] = Endpoint::Connect(way_.addresses[to], way_.name, rank_, peer, ended);
    if (!out_[to].valid()) return false;
  }
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return ended_ || arrived_ == world_ - 1; });
  connected_ = !ended_;
  changed_.notify_all();
  return connected_;
}

void Comm::Serve() {
  while (true) {
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      waits.push_back(
          {connection.fd.get(), static_cast<int16_t>(connection.fd.valid() ? POLLIN : 0), 0});
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) ReadFrom(i - 1);
    }
    if (waits[0].revents == 0) continue;
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    const std::lock_guard lock(mu_);
    if (ended_) return;
    for (Connection& each : adopted_) connections_.push_back(std::move(each));
    adopted_.clear();
  }
}

// A frame is its length and its bytes.
void Comm::ReadFrom(size_t number) {
  Connection& connection = connections_[number];
  char buffer[1 << 16];
  const ssize_t n = ::recv(connection.fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {  // the peer is gone: as with NCCL, whoever waits for it goes on waiting
    connection.fd.reset();
    return;
  }
  std::string& pending = connection.pending;
  pending.append(buffer, static_cast<size_t>(n));
  const std::lock_guard lock(mu_);
  while (pending.size() >= sizeof(uint64_t)) {
    uint64_t size = 0;
    std::memcpy(&size, pending.data(), sizeof(size));
    if (pending.size() - sizeof(size) < size) break;
    mail_[static_cast<size_t>(connection.rank)].push_back(pending.substr(sizeof(size), size));
    pending.erase(0, sizeof(size) + size);
  }
  changed_.notify_all();
}

void Comm::Post(int to, const void* data, size_t bytes) {
  const uint64_t size = bytes;
  std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
  if (bytes > 0) frame.append(static_cast<const char*>(data), bytes);
  const int fd = out_[static_cast<size_t>(to)].get();
  size_t done = 0;
  while (done < frame.size()) {
    const ssize_t n =
        ::send(fd, frame.data() + done, frame.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return;  // the peer is gone
    pollfd wait{fd, POLLOUT, 0};
    ::poll(&wait, 1, 5);
    const std::lock_guard lock(mu_);
    if (ended_) return;
  }
}

std::optional<std::string> Comm::Take(int from, size_t bytes) {
  std::unique_lock lock(mu_);
  std::deque<std::string>& mail = mail_[static_cast<size_t>(from)];
  changed_.wait(lock, [&] { return ended_ || !mail.empty(); });
  if (ended_) return std::nullopt;
  std::string message = std::move(mail.front());
  mail.pop_front();
  if (message.size() != bytes) {
    error_ = kNcclInvalidUsage;
    return std::nullopt;
  }
  return message;
}

bool Comm::Sabotaged() {
  const Fault fault = TakeFault(rank_);
  if (fault.error != kNcclSuccess) Fail(fault.error);
  if (!fault.hangs && fault.error == kNcclSuccess) return false;
  if (fault.ends) return true;
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return ended_; });
  return true;
}

void Comm::Execute(const std::vector<Call>& calls) {
  {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return ended_ || connected_; });
    if (ended_) return;
  }
  if (Sabotaged()) return;
  for (const Call& call : calls) SendPart(call);
  for (const Call& call : calls) ReceivePart(call);
}

void Comm::SendPart(const Call& call) {
  if (call.kind == Call::Kind::kRecv) return;
  if (call.kind == Call::Kind::kSend) return Post(call.peer, call.input, BytesOf(call));
  if (call.kind == Call::Kind::kBroadcast && call.peer != rank_) return;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) Post(r, call.input, BytesOf(call));
  }
}

void Comm::ReceivePart(const Call& call) {
  const size_t bytes = BytesOf(call);
  const auto receive = [&](int from, void* to) {
    const std::optional<std::string> message = Take(from, bytes);
    if (message.has_value()) std::memcpy(to, message->data(), bytes);
  };
  auto* const output = static_cast<char*>(call.output);
  switch (call.kind) {
    case Call::Kind::kSend:
      return;
    case Call::Kind::kRecv:
      return receive(call.peer, output);
    case Call::Kind::kBroadcast:
      if (call.peer != rank_) receive(call.peer, output);
      return;
    case Call::Kind::kAllGather:
      for (int r = 0; r < world_; ++r) {
        char* const place = output + static_cast<size_t>(r) * bytes;
        if (r != rank_) {
          receive(r, place);
        } else if (place != call.input) {
          std::memcpy(place, call.input, bytes);
        }
      }
      return;
    case Call::Kind::kAllReduce: {
      std::vector<std::string> all(static_cast<size_t>(world_), std::string(bytes, '\0'));
      std::vector<const void*> inputs;
      for (int r = world_ - 1; r >= 0; --r) {
        std::string& own = all[static_cast<size_t>(r)];
        if (r == rank_) {
          own.assign(static_cast<const char*>(call.input), bytes);
        } else {
          receive(r, own.data());
        }
        inputs.push_back(own.data());
      }
      const ReduceOp op = call.reduction == kNcclSum   ? ReduceOp::kSum
                          : call.reduction == kNcclMax ? ReduceOp::kMax
                                                       : ReduceOp::kMin;
      ReduceInOrder(inputs, output, static_cast<int64_t>(call.count), DTypeOf(call.type), op);
      return;
    }
  }
}

}  // namespace lockstep::fake_nccl
