// SPDX-License-Identifier: Apache-2.0
// What `coordinator init` leaves in the coordinator's state directory, each its owner's alone:
//   authority.pem  the key that certificates are issued with, and its certificate; needed by init
//                  alone
//   server.pem     the coordinator's key and certificate
//   token          what nodes and users show (client/token.h); it carries the authority's
//   certificate
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_
#define LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

// How long a server's certificate is valid.
inline constexpr absl::Duration kServerValidity = absl::Hours(24 * 365);

struct InitResult {
  bool new_cluster = false;
  std::vector<std::string> names;  // that the server's certificate is for
  absl::Time ends;                 // of it
  std::string token_file;
};

// What to make.
struct InitOptions {
  // Names and numeric addresses at which the coordinator is reached, besides loopback; empty: those
  // of the certificate so far, or all addresses of this host and its name.
  std::vector<std::string> hosts = {};
  // Makes another token; those so far stay below it in the file, and are taken until they are
  // removed.
  bool new_token = false;
};

// Makes what is missing and issues a new certificate to the server; the authority stays, and the
// token unless told otherwise.
// Errors: FailedPrecondition (the folder is another user's; a token is there without its
// authority; a file that others can read); InvalidArgument (a host's name is none); DataLoss (a
// damaged file); as mkdir(2).
absl::StatusOr<InitResult> InitCluster(const std::string& folder, const InitOptions& options,
                                       absl::Time now);

// The server's certificate in `folder`; none: `init` has not been there.
// Errors: FailedPrecondition (others can read it), DataLoss (damaged).
absl::StatusOr<std::optional<Certified>> ReadServerCertificate(const std::string& folder);

// Names and addresses of this host at which others may reach it, and its loopback's.
std::vector<std::string> OwnNames();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_
