// SPDX-License-Identifier: Apache-2.0
// What `coordinator init` leaves in the coordinator's state directory, each its owner's alone:
//   authority.pem  the key that the coordinator's certificate is issued with, and its certificate;
//                  needed by init alone
//   server.pem     the coordinator's key and certificate
//   callers.pem    the key with which the coordinator issues the certificates of tokens, and its
//                  certificate; below it those of former ones, while they are taken, too
//   token          what nodes and users show (client/token.h)
// While the authorities are being replaced there is next-authority.pem, too, which tokens carry
// beside the one so far and which becomes authority.pem in the end. It goes when there is no
// authority.pem that it could follow.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_
#define LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

// How long a server's certificate is valid.
inline constexpr absl::Duration kServerValidity = absl::Hours(24 * 365);

struct InitResult {
  bool new_cluster = false;
  bool new_callers = false;        // the authority of callers was missing, and is there now
  bool rotating = false;           // the authorities are being replaced
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
  // New authorities, of the coordinator and of callers. Those so far are trusted, too, until the
  // rotation is finished: then the coordinator's certificate is of the new one alone, and callers'
  // certificates of the former one are taken no more.
  enum class Rotation { kNone, kBegin, kFinish };
  Rotation rotation = Rotation::kNone;
};

// The authorities of callers.
struct Callers {
  Certified newest;  // which issues
  std::string all;   // the certificates of all that are taken, the newest first
};

// Makes the state directory, with the folders above it, when it is missing. `verb` of the
// coordinator's wants it. Errors: FailedPrecondition (it is another user's, who could not read what
// this one leaves there); as mkdir(2).
absl::Status MakeStateFolder(const std::string& folder, absl::string_view verb);

// Makes what is missing and issues a new certificate to the server; the authorities stay, and the
// token unless told otherwise. A running coordinator takes what it needs of it within seconds.
// Where something cannot be written (a full disk) all files stay as they were. Errors:
// FailedPrecondition (the folder is another user's; a token is there without its authority; a file
// that others can read; a rotation is, or is not, under way); InvalidArgument (a host's name is
// none); DataLoss (a damaged file); as mkdir(2).
absl::StatusOr<InitResult> InitCluster(const std::string& folder, const InitOptions& options,
                                       absl::Time now);

// The server's certificate in `folder`; none: `init` has not been there.
// Errors: FailedPrecondition (others can read it), DataLoss (damaged).
absl::StatusOr<std::optional<Certified>> ReadServerCertificate(const std::string& folder);

// The authorities of callers in `folder`; none: `init` of this version has not been there. Errors:
// as ReadServerCertificate.
absl::StatusOr<std::optional<Callers>> ReadCallers(const std::string& folder);

// Where they lie in `folder`.
std::string ServerFile(const std::string& folder);
// As ServerFile.
std::string CallersFile(const std::string& folder);

// Names and addresses of this host at which others may reach it, and its loopback's.
std::vector<std::string> OwnNames();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_CLUSTER_FILES_H_
