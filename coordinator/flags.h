// SPDX-License-Identifier: Apache-2.0
// The command line of the program `coordinator`.
// Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_FLAGS_H_
#define LOCKSTEP_COORDINATOR_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/service/server.h"
#include "coordinator/store_flags.h"

namespace lockstep::coordinator {

// What the command line asks for.
struct Flags {
  ServerOptions server;
  std::string token_file;
  bool tls_of_token = false;  // the certificate is derived from the token
  // TLS's callers need no certificate of their own.
  bool admit_without_certificate = false;
  StoreFlags store;
  int ready_fd = -1;
  bool parent_death = false;
  int parent = 0;  // 0: whoever it is
  bool told_serving = false;
  bool done = false;  // --help, --version
};

// "--name value", "--name=value"; '_' counts as '-'. --help and --version print. Errors:
// InvalidArgument.
absl::StatusOr<Flags> ParseFlags(int argc, char** argv);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_FLAGS_H_
