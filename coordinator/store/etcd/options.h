// SPDX-License-Identifier: Apache-2.0
// Where an etcd cluster is, who we are to it, and which of its keys are ours.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_STORE_ETCD_OPTIONS_H_
#define LOCKSTEP_COORDINATOR_STORE_ETCD_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "host:port"
  std::string prefix = "/lockstep/";   // of all keys
  bool tls = false;
  std::string authority;                    // PEM; empty: the system's
  std::string certificate, key;             // PEM; empty: none is shown
  std::string user, password;               // user empty: none is named
  absl::Duration lease = absl::Seconds(2);  // of the leader; whole seconds, etcd gives 2 at least
  // Says why no connection to an endpoint comes about, which gRPC does not; empty text: nothing is
  // known. May be empty itself. Called on a thread of its own, and the client's end waits for it.
  std::function<std::string(const EtcdOptions& options, const std::string& endpoint)> explain;
};

// "etcd://HOST:PORT[,HOST:PORT]...[/PREFIX]", or "etcds://" with TLS. Errors: InvalidArgument, with
// what is expected.
absl::StatusOr<EtcdOptions> ParseEtcdAddress(absl::string_view address);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_OPTIONS_H_
