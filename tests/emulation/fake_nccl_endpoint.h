// SPDX-License-Identifier: Apache-2.0
// Where this process is reached by the communicators of others, as NCCL's bootstrap does it: one
// TCP port at the address of one interface, which NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY choose.
// Ranks meet at the process that made their communicator's id and learn each other's addresses.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_ENDPOINT_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_ENDPOINT_H_

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/fd.h"

namespace lockstep::fake_nccl {

class Endpoint {
 public:
  // This process's own, from the first call on; null: no interface is what the variables ask for.
  static Endpoint* Get();

  // "10.0.0.1:41234".
  const std::string& address() const { return address_; }

  // A rank of the communicator `name` takes the sockets on which others send to it, with their
  // ranks; those that have come already at once. Until Forget.
  using Adopt = std::function<void(UniqueFd socket, int from)>;
  void Register(const std::string& name, int rank, Adopt adopt);
  void Forget(const std::string& name, int rank);

  // The addresses of all ranks of `name`, by rank, from the process at `root`; empty: `ended` came
  // first. Blocks.
  std::vector<std::string> Meet(const std::string& root, const std::string& name, int world,
                                int rank, const std::function<bool()>& ended);
  // A socket on which `from` sends to rank `to` of `name`, who is at `address`; none: `ended` came
  // first. Blocks.
  static UniqueFd Connect(const std::string& address, const std::string& name, int from, int to,
                          const std::function<bool()>& ended);

 private:
  // What a connection begins with.
  struct Greeting;
  // Those that have come to the id's maker.
  struct Meeting {
    std::vector<std::string> addresses;  // by rank
    std::map<int, UniqueFd> sockets;     // by rank
  };
  using Place = std::pair<std::string, int>;  // a communicator, and a rank of it

  Endpoint(UniqueFd listener, std::string address);
  void Serve();
  void Welcome(UniqueFd socket, const Greeting& greeting);
  void Gather(UniqueFd socket, const Greeting& greeting);

  const UniqueFd listener_;
  const std::string address_;
  std::mutex mu_;
  std::map<Place, Adopt> ranks_;
  std::map<Place, std::vector<std::pair<UniqueFd, int>>>
      early_;  // for ranks that are not there yet
  std::map<std::string, Meeting> meetings_;
  std::thread server_;
};

}  // namespace lockstep::fake_nccl

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_ENDPOINT_H_
