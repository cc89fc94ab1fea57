// SPDX-License-Identifier: Apache-2.0
// One TLS handshake with a server, to find out why no connection to it comes about: gRPC does not
// say it. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_KNOCK_H_
#define LOCKSTEP_COORDINATOR_CLIENT_KNOCK_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

class Knock {
 public:
  struct Papers {
    std::string authorities = {};  // PEM, of the server; empty: none is known
    Certified shown = {};          // to it, when it asks; empty: nothing is
    bool or_the_hosts = false;     // without authorities, those that the host trusts
  };
  enum class End { kThrough, kNoTls, kUnknown };
  // What is thought of the server's certificate.
  enum class Verdict { kGood, kExpired, kOfTheFuture, kOfAnotherName, kOfAnotherAuthority };

  // Connects to "host:port", whoever answers there. All waits end at `deadline`.
  Knock(const std::string& address, const Papers& papers, absl::Time deadline);
  ~Knock();

  // Makes the handshake, as far as it comes.
  End Run();
  // Returns whether it wants to see a certificate.
  bool asked() const;
  // Returns whether it closed the connection instead of an answer.
  bool was_closed() const;

  // Returns whether it closes the connection when it has seen what there is. Waits until it speaks.
  // REQUIRES: Run has returned kThrough.
  bool TurnsAway();
  Verdict verdict() const;
  // PEM; empty: it has none.
  std::string PeersCertificate() const;

 private:
  class Handshake;
  class Connection;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_KNOCK_H_
