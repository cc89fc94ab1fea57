// SPDX-License-Identifier: Apache-2.0
#include "common/openssl_at_exit.h"

#include <openssl/crypto.h>

#include "common/check.h"

namespace lockstep {

void KeepOpenSslUntilTheEnd() {
  const int set = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  LS_CHECK(set == 1) << "OpenSSL cannot be set up";
}

}  // namespace lockstep
