// SPDX-License-Identifier: Apache-2.0
#include "common/openssl_at_exit.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

namespace lockstep {
namespace {

using ::testing::ExitedWithCode;

// A child that uses OpenSSL, and once more when the handlers that were registered since have run,
// as a thread of gRPC would.
void UseAtExit() {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto digest = [] {
    EVP_MD* const sha = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    std::fputs(sha == nullptr ? "gone " : "there ", stderr);
    EVP_MD_free(sha);
  };
  std::atexit(+digest);  // before OpenSSL's own, so it runs after that
  KeepOpenSslUntilTheEnd();
  digest();
  std::exit(0);
}

TEST(OpenSslAtExitTest, ItIsThereToTheEnd) {
  EXPECT_EXIT(UseAtExit(), ExitedWithCode(0), "there there ");
}

}  // namespace
}  // namespace lockstep
