// SPDX-License-Identifier: Apache-2.0
// One communicator of the fake NCCL: a socket to and from every peer, wherever it is, messages by
// sender.
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
#include "common/fd.h"
#include "tests/emulation/fake_nccl_endpoint.h"

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

// How the ranks of a communicator find each other.
struct Way {
  std::string name;                    // the same on all of them, and no other communicator's
  std::string root;                    // where they meet to learn their addresses
  std::vector<std::string> addresses;  // by rank, where they are known: nobody meets
};

class Comm {
 public:
  // Reaches the others; the state is in progress until all are there. `endpoint` is this process's.
  Comm(Endpoint* endpoint, Way way, int world, int rank);
  // REQUIRES: End was called.
  ~Comm();

  const std::string& name() const { return way_.name; }
  // Of all ranks, by rank; empty while they are not all there.
  std::vector<std::string> Addresses();
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
  void Serve();  // the thread that reads
  void Work();   // the thread that connects and runs what was submitted
  bool ConnectAll();
  void Accept(UniqueFd socket, int from);
  void Wake();
  bool Ended();
  void ReadFrom(size_t connection);
  void Post(int to, const void* data, size_t bytes);
  std::optional<std::string> Take(int from, size_t bytes);
  void SendPart(const Call& call);
  void ReceivePart(const Call& call);
  void Fail(NcclResult error);
  bool Sabotaged();

  struct Connection {
    UniqueFd fd;
    int rank = 0;
    std::string pending;
  };

  Endpoint* const endpoint_;
  Way way_;  // its addresses: of Work alone until connected_
  const int world_;
  const int rank_;
  UniqueFd wake_;
  std::vector<UniqueFd> out_;            // by rank
  std::vector<Connection> connections_;  // of Serve alone

  std::mutex mu_;
  std::condition_variable changed_;
  int arrived_ = 0;
  std::vector<Connection> adopted_;  // not Serve's yet
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
