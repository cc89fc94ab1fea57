// SPDX-License-Identifier: Apache-2.0
#include "common/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/check.h"

namespace lockstep {

std::string HmacSha256(std::string_view key, std::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(message.data());
  LS_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, message.size(),
                digest, &length) != nullptr);
  return std::string(reinterpret_cast<const char*>(digest), length);
}

}  // namespace lockstep
