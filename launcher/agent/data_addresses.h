// SPDX-License-Identifier: Apache-2.0
// At which addresses of this host workers of other hosts may reach its workers.
//
// The address that leads to the coordinator comes first: the network that joins the hosts to their
// coordinator most likely joins them to each other. Then the others, the fastest first. Interfaces
// that are down, loopback, link-local addresses and the bridges of containers and virtual machines
// are left out, unless they are named.
// Thread-safety: pure functions, but for the ones that look at the system, which are thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_DATA_ADDRESSES_H_
#define LOCKSTEP_LAUNCHER_AGENT_DATA_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::launcher {

// One address of one interface.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric: "10.0.0.1", "fd00::1"
  bool up = true;
  // A bridge or a switch of containers or virtual machines, or an end of one.
  bool is_virtual = false;
  int64_t mbits = 0;  // per second; 0: not known
};

// Which interfaces the user wants: "eth0,10.0.0.0/8,^docker0".
class InterfaceFilter {
 public:
  // A list of names of interfaces, addresses and networks, apart by commas; with '^' in front they
  // are left out. With one that is not left out, no others are taken, and these in their order. A
  // name may end in '*'. Empty: the host's choice. Errors: InvalidArgument, naming the part.
  static absl::StatusOr<InterfaceFilter> Parse(const std::string& list);

  // The place of the first part that names it; the number of parts when none does and none needs
  // to; -1: it is left out.
  int Rank(const std::string& interface, const std::string& address) const;
  // Returns whether it is named, so that it is taken whatever it is.
  bool Names(const std::string& interface, const std::string& address) const;
  bool empty() const { return parts_.empty(); }

 private:
  struct Part {
    bool out = false;
    std::string name;     // of an interface; empty: a network
    std::string network;  // its bytes, 4 or 16
    int prefix = 0;       // bits of it
  };
  static bool Matches(const Part& part, const std::string& interface, const std::string& address);

  std::vector<Part> parts_;
  bool includes_ = false;
};

// The numeric addresses that workers publish, best first, at most 8. `own`: this host's end of the
// way to the coordinator; `seen`: where the coordinator sees the connection come from. Either may
// be empty. One that is seen and is not the host's own, as behind a router that translates
// addresses, comes last. A host without any other address has its loopback.
std::vector<std::string> ChooseDataAddresses(const std::vector<InterfaceAddress>& all,
                                             const InterfaceFilter& filter, const std::string& own,
                                             const std::string& seen);

// The addresses that the system has now. None when it does not say.
std::vector<InterfaceAddress> SystemAddresses();

// This host's end of the way to the coordinator at `address` ("10.0.0.1:7077", "[fd00::1]:7077").
// Sends nothing and resolves nothing: empty for names, Unix sockets, and where no way leads.
std::string OwnEndTowards(const std::string& address);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_DATA_ADDRESSES_H_
