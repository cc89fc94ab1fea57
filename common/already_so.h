// SPDX-License-Identifier: Apache-2.0
// A refusal because things are as they were to be: the node that is to get work again gets some.
// Whoever asks a second time, since the first try broke off and may have been carried out, takes it
// for done. Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_ALREADY_SO_H_
#define LOCKSTEP_COMMON_ALREADY_SO_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The payload's name, and what the details of a gRPC status are then.
inline constexpr char kAlreadySo[] = "lockstep/already-so";

// Returns FailedPrecondition with `message`, marked so.
inline absl::Status AlreadySoError(absl::string_view message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kAlreadySo, absl::Cord());
  return status;
}

// Returns whether `status` is marked so.
inline bool IsAlreadySo(const absl::Status& status) {
  return status.GetPayload(kAlreadySo).has_value();
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_ALREADY_SO_H_
