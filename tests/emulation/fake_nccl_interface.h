// SPDX-License-Identifier: Apache-2.0
// Which of the host's interfaces NCCL takes, as its documentation says. Thread-safety: pure
// functions.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_INTERFACE_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_INTERFACE_H_

#include <sys/socket.h>

#include <string>
#include <vector>

namespace lockstep::fake_nccl {

// Returns whether NCCL_SOCKET_IFNAME's `wanted` names the interface: a list of prefixes, of whole
// names behind "=", of what is left out behind "^".
bool Names(const std::string& wanted, const std::string& interface);

struct InterfaceAddress {
  std::string interface;
  sockaddr_storage address{};
};

// Returns which of `there` is taken, with null for a variable that is not set: without `wanted`
// neither lo nor docker's are, where there are others. -1: none.
int Choose(const std::vector<InterfaceAddress>& there, const char* wanted, const char* family);

}  // namespace lockstep::fake_nccl

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_INTERFACE_H_
