// SPDX-License-Identifier: Apache-2.0
// HMAC with SHA-256 (RFC 2104, FIPS 180-4), by OpenSSL.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_HMAC_H_
#define LOCKSTEP_COMMON_HMAC_H_

#include <string>
#include <string_view>

namespace lockstep {

// 32 bytes.
std::string HmacSha256(std::string_view key, std::string_view message);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_HMAC_H_
