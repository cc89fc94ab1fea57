// SPDX-License-Identifier: Apache-2.0
// One communicator of the fake NCCL: a socket to and from every peer, messages by sender.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_COMM_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_COMM_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/nccl_api.h"

namespace lockstep::fake_nccl {

// One call of a group.
struct Call {
  enum class Kind { kSend, kRecv, kAllGather, kAllReduce, kBroadcast } kind = Kind::kSend;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  NcclType type = kNcclUint8;
  NcclReduction reduction = kNcclSum;
  int peer = 0;  // or the root
};

class Comm {
 public:
  // Meets those that use the same `name`; the state is in progress until all are there.
  Comm(std::string name, int world, int rank);
  // REQUIRES: End was called.
  ~Comm();

  const std::string& name() const { return name_; }
  int world() const { return world_; }
  int rank() const { return rank_; }

  // Returns what ncclCommGetAsyncError gives.
  NcclResult State();
  // Runs `calls` on the communicator's thread; in progress meanwhile.
  void Submit(std::vector<Call> calls);
  // Runs `calls` now, until they are done or the communicator is ended.
  void Execute(const std::vector<Call>& calls);
  // Ends everything that runs or will.
  void End();

 private:
  void Serve();  // the thread that accepts and reads
  void Work();   // the thread that connects and runs what was submitted
  bool ConnectAll();
  void ReadFrom(size_t connection);
  void Post(int to, const void* data, size_t bytes);
  std::optional<std::string> Take(int from, size_t bytes);
  void SendPart(const Call& call);
  void ReceivePart(const Call& call);
  void Fail(NcclResult error);
  bool Sabotaged();

  struct Connection {
    int fd = -1;
    int rank = -1;  // -1: it has not said yet
    std::string pending;
  };

  const std::string name_;
  const int world_;
  const int rank_;
  int listener_ = -1;
  int wake_ = -1;
  std::vector<int> out_;                 // by rank
  std::vector<Connection> connections_;  // of Serve alone

  std::mutex mu_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool connected_ = false;
  bool ended_ = false;
  int busy_ = 0;
  NcclResult error_ = kNcclSuccess;
  std::deque<std::vector<Call>> submitted_;
  std::vector<std::deque<std::string>> mail_;  // by sender
  std::thread server_, worker_;
};

}  // namespace lockstep::fake_nccl

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_COMM_H_
