// SPDX-License-Identifier: Apache-2.0
// Where a user's coordinator listens when nobody says otherwise, so that the daemon and the verbs
// of the same user find each other without a flag: the socket `coordinator.sock` in the user's
// runtime folder. That is the first that can be used of
//   $XDG_RUNTIME_DIR/lockstep   of a login session
//   /run/lockstep               of root, or made for this user by the service manager
//   /tmp/lockstep-<uid>
// A folder is used only when it is one, no link, belongs to the user and nobody else can write in
// it. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_DEFAULT_ADDRESS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_DEFAULT_ADDRESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

// What the search depends on; tests give others.
struct RuntimePlaces {
  std::string xdg;  // empty: there is no session's folder
  std::string run = "/run";
  std::string tmp = "/tmp";
  uid_t uid = 0;

  // The environment's and the process's own.
  static RuntimePlaces Here();
};

// The runtime folder; made with mode 0700 when it is missing.
// Errors: FailedPrecondition when none can be used, with the reason for each.
absl::StatusOr<std::string> MakeRuntimeFolder(const RuntimePlaces& places = RuntimePlaces::Here());

// The address in a runtime folder.
std::string DefaultAddressIn(const std::string& folder);

// For clients, which make nothing: the address in the first runtime folder in which a socket lies,
// or, when there is none, that in which a coordinator would make it. Errors: as MakeRuntimeFolder.
absl::StatusOr<std::string> FindDefaultAddress(const RuntimePlaces& places = RuntimePlaces::Here());

// The addresses of a list with commas between them; at least one.
std::vector<std::string> AddressesOf(absl::string_view list);

// "host:port", in contrast to "unix:/path" and "unix-abstract:name".
bool IsTcpAddress(absl::string_view address);

// The host in "host:port", without an IPv6 address's brackets.
std::string HostOf(absl::string_view tcp_address);

// Returns whether such a host, by its name or address, is this machine to itself.
bool IsLoopbackHost(absl::string_view host);

// Where a coordinator of this user that listens on the TCP address `address` leaves a link to its
// token; in the runtime folder `folder`.
std::string TokenLink(const std::string& folder, const std::string& address);

// The token that a verb shows at `address`, one or a list, when it is told none: that of the user's
// own coordinator there. Empty: there is none, or none is needed. Errors: as ReadToken (token.h).
absl::StatusOr<std::string> FindToken(const std::string& address,
                                      const RuntimePlaces& places = RuntimePlaces::Here());

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_DEFAULT_ADDRESS_H_
