// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl_comm.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "collectives/reduce.h"
#include "common/check.h"
#include "tests/emulation/fake_nccl_faults.h"

namespace lockstep::fake_nccl {
namespace {

// An abstract name: nothing is left behind.
socklen_t AddressOf(const std::string& name, int rank, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string text = "fake-nccl." + name + "." + std::to_string(rank);
  LS_CHECK_LT(text.size() + 1, sizeof(address->sun_path));
  std::memcpy(address->sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

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

Comm::Comm(std::string name, int world, int rank)
    : name_(std::move(name)),
      world_(world),
      rank_(rank),
      out_(static_cast<size_t>(world), -1),
      mail_(static_cast<size_t>(world)) {
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  sockaddr_un address;
  const socklen_t size = AddressOf(name_, rank_, &address);
  LS_CHECK(listener_ >= 0 && wake_ >= 0 &&
           ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
           ::listen(listener_, world_) == 0)
      << "fake NCCL " << name_ << " rank " << rank_ << ": " << std::strerror(errno);
  server_ = std::thread([this] { Serve(); });
  worker_ = std::thread([this] { Work(); });
}

Comm::~Comm() {
  server_.join();
  worker_.join();
  ::close(listener_);
  ::close(wake_);
  for (const int fd : out_) {
    if (fd >= 0) ::close(fd);
  }
  for (const Connection& connection : connections_) ::close(connection.fd);
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
  const uint64_t one = 1;
  LS_CHECK_EQ(::write(wake_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
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
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    out_[static_cast<size_t>(peer)] = fd;
    sockaddr_un address;
    const socklen_t size = AddressOf(name_, peer, &address);
    while (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) {
      std::unique_lock lock(mu_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return ended_; })) {
        return false;
      }
    }
    const int32_t own = rank_;
    ::send(fd, &own, sizeof(own), MSG_NOSIGNAL);
  }
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return ended_ || arrived_ == world_ - 1; });
  connected_ = !ended_;
  changed_.notify_all();
  return connected_;
}

void Comm::Serve() {
  while (true) {
    std::vector<pollfd> waits = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      waits.push_back({connection.fd, static_cast<short>(connection.fd >= 0 ? POLLIN : 0), 0});
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) {
      connections_.push_back({::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), -1, ""});
    }
    for (size_t i = 2; i < waits.size(); ++i) {
      if (waits[i].revents != 0) ReadFrom(i - 2);
    }
  }
}

// A frame is its length and its bytes; the first four bytes of a connection are its rank.
void Comm::ReadFrom(size_t number) {
  Connection& connection = connections_[number];
  char buffer[1 << 16];
  const ssize_t n = ::recv(connection.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0) return;
  if (n == 0) {  // the peer is gone: as with NCCL, whoever waits for it goes on waiting
    ::close(connection.fd);
    connection.fd = -1;
    return;
  }
  std::string& pending = connection.pending;
  pending.append(buffer, static_cast<size_t>(n));
  const std::lock_guard lock(mu_);
  if (connection.rank < 0 && pending.size() >= sizeof(int32_t)) {
    std::memcpy(&connection.rank, pending.data(), sizeof(int32_t));
    pending.erase(0, sizeof(int32_t));
    ++arrived_;
  }
  while (connection.rank >= 0 && pending.size() >= sizeof(uint64_t)) {
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
  const int fd = out_[static_cast<size_t>(to)];
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
