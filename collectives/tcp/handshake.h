// SPDX-License-Identifier: Apache-2.0
// How the two ends of a connection prove who they are, before anything else is read from it. Both
// know the secret of the generation; each sends 32 random bytes and shows a keyed hash
// (HMAC-SHA256) over what both have sent, so that a stranger, a recorded conversation and a
// connection of another generation are turned away.
//
//   client (the higher rank)            server (the lower rank)
//   Hello{job, generation, from, to}  ->
//                                     <-  Challenge (the server's proof), or why it is refused
//   Proof                             ->
//                                     <-  Welcome
//
// All messages have a fixed size. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TCP_HANDSHAKE_H_
#define LOCKSTEP_COLLECTIVES_TCP_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

struct Identity {
  std::string job;
  int64_t generation = 0;
  int from = 0;
  int to = 0;
};

inline constexpr size_t kHelloBytes = 104;
inline constexpr size_t kChallengeBytes = 72;
inline constexpr size_t kProofBytes = 40;
inline constexpr size_t kWelcomeBytes = 40;

// The client's side of one connection.
class ClientHandshake {
 public:
  ClientHandshake(Identity identity, std::string secret);

  const std::string& hello() const { return hello_; }
  // The proof to send in answer to a challenge of kChallengeBytes. Errors: Unavailable with what
  // the server refuses for; PermissionDenied when it does not know the secret; FailedPrecondition
  // when it is none of ours.
  absl::StatusOr<std::string> Answer(std::string_view challenge);
  // Errors: PermissionDenied.
  absl::Status Finish(std::string_view welcome) const;
  // Returns what both ends begin checksums with. REQUIRES: Answer was OK.
  uint64_t seed() const;

 private:
  const std::string secret_;
  std::string hello_;
  std::string spoken_;  // hello and the server's nonce
};

// The server's side of one connection.
class ServerHandshake {
 public:
  // `identity` has the generation and `to`; who comes is told by the hello.
  ServerHandshake(Identity identity, std::string secret);

  // The challenge to send in answer to a hello of kHelloBytes; `from` is who claims to have come.
  // Errors: FailedPrecondition when it is no hello of this build, or is meant for another job,
  // generation or rank; the message can be sent as a Refusal.
  absl::StatusOr<std::string> Answer(std::string_view hello, int* from);
  // The welcome to send in answer to a proof of kProofBytes. Errors: PermissionDenied.
  absl::StatusOr<std::string> Finish(std::string_view proof) const;
  uint64_t seed() const;

 private:
  const Identity identity_;
  const std::string secret_;
  std::string spoken_;
};

// Stands in the place of a challenge: kChallengeBytes that say why there is none.
std::string Refusal(std::string_view why);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_HANDSHAKE_H_
