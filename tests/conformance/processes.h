// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of this machine, for what only processes can: be killed, be stopped. With
// nodes they do as if they were on several hosts, which TCP joins. Thread-safety: one test thread
// drives it; it forks, so there is no other one then.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_PROCESSES_H_
#define LOCKSTEP_TESTS_CONFORMANCE_PROCESSES_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "common/fd.h"
#include "common/life.h"

namespace lockstep {

// A job of forked workers.
class Processes {
 public:
  // What a child does with its communicator; what it returns is sent to the parent as its last
  // message.
  using Body = std::function<std::string(Communicator&, Transport&, int socket)>;

  // `nodes` by rank; empty: all on one, over shared memory alone. `arena_bytes` of each rank.
  Processes(int world, int shards, const Body& body, const std::vector<std::string>& nodes = {},
            size_t arena_bytes = 8 << 20);
  ~Processes();

  // The next message of a rank.
  std::string Receive(int rank);
  // A message to a rank, which receives it from its socket.
  void Send(int rank, const std::string& message);
  // Blocks until a rank has ended. Returns whether it came to its own end.
  bool EndsWell(int rank);
  void Kill(int rank);
  void Stop(int rank);
  // Blocks until a rank has died or `timeout` is over. Returns whether it has.
  bool WaitForDeath(int rank, absl::Duration timeout) const;

 private:
  void Start(int rank, const Body& body);
  void Child(int rank, int socket, const Body& body);

  const std::vector<std::string> nodes_;
  const size_t arena_bytes_;
  std::unique_ptr<LifePage> page_;
  std::vector<UniqueFd> sockets_;
  std::vector<pid_t> pids_;
};

// Long enough never to pass in a test that does not want it to.
absl::Time MuchLater();

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_CONFORMANCE_PROCESSES_H_
