// SPDX-License-Identifier: Apache-2.0
#include "common/random_hex.h"

#include <sys/random.h>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace lockstep {

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  // Requests of this size are served whole and are not interrupted.
  LS_CHECK(bytes <= 256);
  LS_CHECK(::getrandom(raw.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  return absl::BytesToHexString(raw);
}

}  // namespace lockstep
