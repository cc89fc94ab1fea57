// SPDX-License-Identifier: Apache-2.0
// Any text is a token or an error: what a file, a variable or a caller gives. A token that is taken
// comes back from its parts, and no text is a worker's but the one that was made for it.
#include <cstdint>
#include <string>

#include "common/check.h"
#include "coordinator/client/token.h"
#include "coordinator/core/tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::coordinator;  // NOLINT: a fuzz target is one function
  const std::string text(reinterpret_cast<const char*>(data), size);
  State state;
  state.secret = "of the cluster";
  const std::string worker = WorkerOf(state, text);
  if (!worker.empty()) LS_CHECK(WorkerToken(state, worker) == text);
  LS_CHECK(FindToken(state, text, absl::UnixEpoch()) == nullptr);
  const auto token = CheckToken(text, "the input");
  if (!token.ok()) {
    LS_CHECK(absl::IsFailedPrecondition(token.status())) << token.status();
    return 0;
  }
  const auto parts = ParseToken(*token);
  LS_CHECK(parts.ok()) << parts.status();
  const auto whole = TokenOf(*parts);
  LS_CHECK(whole.ok()) << whole.status();
  const auto again = ParseToken(*whole);
  LS_CHECK(again.ok() && again->secret == parts->secret && again->authority == parts->authority);
  return 0;
}
