// SPDX-License-Identifier: Apache-2.0
// What a coordinator shows on TCP, and whom it lets pass TLS's handshake: who shows a certificate
// of the authority of callers, made for a token that is still good. Nobody else speaks HTTP/2 to
// it. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_TLS_H_
#define LOCKSTEP_COORDINATOR_SERVICE_TLS_H_

#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

struct ServerTls {
  // The coordinator's certificate, and the authorities of callers (PEM).
  Certified server = {};
  std::string callers = {};
  // Where both are read from again every few seconds, so that what `coordinator init` renews is
  // taken without a restart; empty: they stay as they are above.
  std::string folder = {};
  // Callers without a certificate are let in, too, while they are being given one. One that is
  // shown is looked at.
  bool optional = false;
};

// Returns whether who shows a certificate of this name (NameOfToken) may pass. Called in each
// handshake, on gRPC's threads.
using Admits = std::function<bool(absl::string_view name)>;

// Returns what a server listens with; without `tls` nothing is encrypted.
std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const std::optional<ServerTls>& tls,
                                                        Admits admits);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_TLS_H_
