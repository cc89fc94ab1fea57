// SPDX-License-Identifier: Apache-2.0
// The tokens of users and nodes, and those of workers' lives.
//
// Of a user's or node's token the state has a hash alone: SHA-256, as HMAC under a label, of 256
// random bits. A slow hash protects what can be guessed; these bits cannot.
// A worker's token is derived from the cluster's secret for each life, so there is nothing to keep:
// a coordinator that goes on from the journal makes the same ones again.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_TOKENS_H_
#define LOCKSTEP_COORDINATOR_CORE_TOKENS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// Returns what is kept of a token's secret.
std::string TokenHash(absl::string_view secret);

// Keeps a new token. Errors: PermissionDenied; InvalidArgument (a name or role that is none, or it
// has expired already); ResourceExhausted (there are too many).
absl::Status CreateToken(Context& context, const TokenCreated& event);

// Forgets a token, and ends the sessions of agents that were let in with it. Errors: NotFound;
// PermissionDenied (it is another user's).
absl::Status RevokeToken(Context& context, const TokenRevoked& event);

// The token with this secret; null: there is none, or it has expired.
const TokenInfo* FindToken(const State& state, absl::string_view secret, absl::Time now);
// Why one that is not found is not taken, and what helps, as far as that is known: Unauthenticated.
absl::Status WhyNotTaken(const State& state, absl::string_view secret);

// Those that `who` may see, without what they hide, in the order of their making.
ListTokensResponse ListTokens(const State& state, const Requester& who);

// Returns what the worker of this incarnation shows: "worker.<incarnation>.<64 digits>". Empty
// without a cluster's secret, as of tests.
std::string WorkerToken(const State& state, const std::string& incarnation);
// The incarnation whose token this is; empty: it is none of this cluster's.
std::string WorkerOf(const State& state, absl::string_view token);

// Returns the key of a token's row in the journal.
std::string TokenKey(const std::string& id);

// Of the journal (journal.cc): takes a row in; writes those again that an earlier step could not.
bool RestoreToken(const std::string& id, const std::string& value, State& state);
void WriteOwedTokens(Context& context);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_TOKENS_H_
