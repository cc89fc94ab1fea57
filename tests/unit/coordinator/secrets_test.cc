// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/secrets.h"

#include <string>

#include "absl/strings/escaping.h"
#include "common/hmac.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/peer_host.h"
#include "coordinator/store/store.h"
#include "gtest/gtest.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

TEST(HmacTest, IsThatOfRfc4231) {
  EXPECT_EQ(absl::BytesToHexString(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(absl::BytesToHexString(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(SecretsTest, EachGenerationHasItsOwn) {
  const std::string one = GenerationSecret("cluster", "job", 1);
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(one, GenerationSecret("cluster", "job", 1));
  EXPECT_NE(one, GenerationSecret("cluster", "job", 2));
  EXPECT_NE(one, GenerationSecret("cluster", "other", 1));
  EXPECT_NE(one, GenerationSecret("another", "job", 1));
  EXPECT_EQ(GenerationSecret("", "job", 1), "");
}

TEST(SecretsTest, TheClustersIsMadeOnceAndKept) {
  const std::unique_ptr<Store> store = MakeMemoryStore();
  const auto first = Begin(store.get(), Options(), absl::UnixEpoch());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->state.secret.size(), 64u);
  const auto second = Begin(store.get(), Options(), absl::UnixEpoch());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->state.secret, first->state.secret);
  EXPECT_NE(Begin(MakeMemoryStore().get(), Options(), absl::UnixEpoch())->state.secret,
            first->state.secret);
}

TEST(SecretsTest, AJournalOfAnOlderVersionGetsOne) {
  const std::unique_ptr<Store> store = MakeMemoryStore();
  CoordinatorRecord old;
  old.set_lives(3);
  old.set_cluster_id("c");
  ASSERT_TRUE(store->PutBatch({{"coordinator", old.SerializeAsString(), -1}}).ok());
  const auto begun = Begin(store.get(), Options(), absl::UnixEpoch());
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->speaker.cluster_id, "c");
  EXPECT_EQ(begun->speaker.epoch, 4);
  EXPECT_EQ(begun->state.secret.size(), 64u);
}

TEST(ParsePeerTest, IsTheAddressAndThePort) {
  EXPECT_EQ(ParsePeer("ipv4:10.0.0.1:4711").host, "10.0.0.1");
  EXPECT_EQ(ParsePeer("ipv4:10.0.0.1:4711").port, 4711);
  EXPECT_EQ(ParsePeer("ipv6:[fd00::1]:4711").host, "fd00::1");
  EXPECT_EQ(ParsePeer("ipv6:%5Bfd00::1%5D:4711").host, "fd00::1");
  EXPECT_EQ(ParsePeer("ipv6:%5Bfd00::1%5D:4711").port, 4711);
  EXPECT_EQ(ParsePeer("ipv6:%5B::ffff:10.0.0.1%5D:4711").host, "10.0.0.1");
  EXPECT_EQ(ParsePeer("ipv6:%5Bfe80::1%25eth0%5D:4711").host, "fe80::1");
  EXPECT_EQ(ParsePeer("unix:/run/lockstep/coordinator.sock").host, "");
  EXPECT_EQ(ParsePeer("unix-abstract:x").host, "");
  EXPECT_EQ(ParsePeer("").host, "");
}

}  // namespace
}  // namespace lockstep::coordinator
