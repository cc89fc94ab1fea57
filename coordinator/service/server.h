// SPDX-License-Identifier: Apache-2.0
// A listening coordinator.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/core/state.h"
#include "coordinator/service/tls.h"
#include "coordinator/service/token_issuer.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

class Listener;

struct ServerOptions {
  // "unix:/path", "unix-abstract:name" or "host:port" (port 0: any free one). On Unix sockets only
  // the coordinator's own user and root are let in, unless `local_users`.
  std::string listen;
  // Addresses that other machines reach are allowed, although nothing is encrypted.
  bool plaintext = false;
  // The cluster's own token, whose holder is its administrator; empty: there is none, which needs a
  // Unix socket. Of a token with parts (client/token.h) the secret.
  std::string token;
  // These are taken, too: while they are being replaced, or where callers need none.
  std::vector<std::string> other_tokens;
  // What TCP is encrypted with, and whose certificates it takes; without it loopback is not, and
  // other addresses are refused unless `plaintext`.
  std::optional<ServerTls> tls;
  // What tokens are made with here, so that their holders speak TLS.
  TokenIssuer issuer;
  // Other users of this machine may use a Unix socket, each with the role submit and what their
  // tokens give them.
  bool local_users = false;
  // Where the audit is kept (audit.h); empty: nowhere.
  std::string audit;
  // Where workdirs of jobs are kept; empty: in memory, and fewer of them.
  std::string packages;
  // How long who sends or takes a file or a package may take for each piece of it: of 64 KiB, by
  // which 2.2 kB/s are enough, and of a MiB at most from who is older.
  absl::Duration piece_patience = absl::Seconds(30);
  // For how long each of them has its place, though others ask for it (Places): longer than all
  // that an agent sends takes at its full rate.
  absl::Duration transfer_share = absl::Minutes(20);
  Options limits;
  // Bound already to `listen`, and outlives the server; null: the server binds one of its own.
  Listener* listener = nullptr;
  // Called once when the journal has failed for good: the process is to end. May be empty.
  std::function<void(const absl::Status&)> on_broken;
  // Called when an agent shows that there was a later coordinator of this cluster than this one,
  // with its number: the journal is an old copy (`RaiseEpoch` in beginning.h helps). May be empty.
  std::function<void(int64_t epoch)> on_later;
};

class Server {
 public:
  // Listens and serves. `clock` and `store` outlive the server.
  // Errors: InvalidArgument (a bad address), FailedPrecondition (TCP without a token; an address
  // that other machines reach, without `tls` or `plaintext`; the address is in use), DataLoss and
  // others when the journal cannot be read or written.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Clock* clock,
                                                       Store* store);
  virtual ~Server() = default;  // stops
  // The address that clients use, with the port that was bound.
  virtual const std::string& address() const = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_SERVER_H_
