// SPDX-License-Identifier: Apache-2.0
// Each in a process of its own: OpenSSL reads its configuration once.
#include "coordinator/client/no_tickets.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/client/openssl_free.h"

namespace lockstep::coordinator {
namespace {

using Context = std::unique_ptr<SSL_CTX, lockstep::coordinator::Free<SSL_CTX_free>>;

// 0: no tickets are given, and this is the oldest version that is spoken.
int Look(const char* configuration, int oldest_version) {
  if (configuration != nullptr) ::setenv("OPENSSL_CONF", configuration, 1);
  if (SSL_CTX_get_num_tickets(Context(SSL_CTX_new(TLS_method())).get()) == 0) return 1;
  GiveNoTickets();
  const Context after(SSL_CTX_new(TLS_method()));
  if (SSL_CTX_get_num_tickets(after.get()) != 0) return 2;
  return SSL_CTX_get_min_proto_version(after.get()) == oldest_version ? 0 : 3;
}

class NoTicketsTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NoTicketsTest, ThereAreNone) {
  EXPECT_EXIT(::_exit(Look(nullptr, 0)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(::_exit(Look("/there/is/none", 0)), testing::ExitedWithCode(0), "");
}

TEST_F(NoTicketsTest, WhatTheHostSaysStays) {
  const std::string path = testing::TempDir() + "no_tickets_test.cnf";
  const std::string own = absl::StrCat(path, ".", ::getpid());  // the test's process and its child
  std::ofstream(own) << "openssl_conf = all\n[all]\nssl_conf = tls\n[tls]\nsystem_default = "
                        "strict\n[strict]\nMinProtocol = TLSv1.3\n";
  ASSERT_EQ(std::rename(own.c_str(), path.c_str()), 0);
  EXPECT_EXIT(::_exit(Look(path.c_str(), TLS1_3_VERSION)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::coordinator
