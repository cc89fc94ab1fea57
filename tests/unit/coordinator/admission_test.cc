// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/admission.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::coordinator {
namespace {

using Verdict = Admission::Verdict;

// Returns what the gate does with a token.
bool MayCall(Admission& admission, const std::string& host, int port, absl::string_view token) {
  if (!admission.Knows(token)) return false;
  admission.HasProven(host, port);
  return true;
}

constexpr uid_t kOwn = 1000;

Admission::Peer Tcp(uint64_t id, const std::string& host) {
  return {id, host, static_cast<int>(40000 + id), std::nullopt};
}
Admission::Peer Local(uint64_t id, uid_t uid) { return {id, "", 0, uid}; }

Admission::Limits Few() {
  Admission::Limits limits;
  limits.connections = 6;
  limits.unproven = 3;
  limits.unproven_of_host = 2;
  return limits;
}

TEST(AdmissionTest, OnAUnixSocketTheKernelsWordCounts) {
  Admission admission(kOwn, {}, Few());
  EXPECT_EQ(admission.Connect(Local(1, kOwn)), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Local(2, 0)), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Local(3, kOwn + 1)), Verdict::kStranger);
  EXPECT_EQ(admission.connections(), 2u);
  EXPECT_EQ(admission.unproven(), 0u);
  EXPECT_FALSE(admission.Knows("")) << "there is no secret to be known";
}

TEST(AdmissionTest, OtherUsersOfTheMachineAreLetInWhereTheyMayAndCounted) {
  Admission admission(kOwn, {}, Few(), /*local_users=*/true);
  EXPECT_EQ(admission.Connect(Local(1, kOwn)), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Local(2, kOwn + 1)), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Local(3, kOwn + 1)), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Local(4, kOwn + 1)), Verdict::kFull) << "two of a user";
  EXPECT_EQ(admission.Connect(Local(4, kOwn + 2)), Verdict::kLetIn);
  EXPECT_EQ(admission.unproven(), 3u);
  EXPECT_EQ(admission.Connect(Local(5, kOwn)), Verdict::kLetIn) << "nobody keeps the owner out";
}

TEST(AdmissionTest, ATokenIsAskedForAndComparedWhole) {
  Admission admission(kOwn, {"secret"}, Few());
  for (const char* wrong : {"", "s", "secre", "secret0", "Secret", "secretsecret"}) {
    EXPECT_FALSE(MayCall(admission, "10.0.0.1", 1, wrong)) << wrong;
  }
  EXPECT_TRUE(MayCall(admission, "10.0.0.1", 1, "secret"));
  EXPECT_FALSE(MayCall(admission, "", 0, "")) << "on a Unix socket, too, where there is one";
}

TEST(AdmissionTest, AnOldTokenIsTakenWhileItIsReplaced) {
  Admission admission(kOwn, {"new", "old"}, Few());
  EXPECT_TRUE(MayCall(admission, "10.0.0.1", 1, "new"));
  EXPECT_TRUE(MayCall(admission, "10.0.0.1", 1, "old"));
  EXPECT_FALSE(MayCall(admission, "10.0.0.1", 1, "older"));
}

TEST(AdmissionTest, WhoProvesNothingKeepsNobodyOut) {
  Admission admission(kOwn, {"secret"}, Few());
  EXPECT_EQ(admission.Connect(Tcp(1, "a")), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Tcp(2, "a")), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Tcp(3, "a")), Verdict::kFull) << "two of a host";
  EXPECT_EQ(admission.Connect(Tcp(4, "b")), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Tcp(5, "c")), Verdict::kFull) << "three in all";
  EXPECT_TRUE(MayCall(admission, "b", 40004, "secret"));
  EXPECT_EQ(admission.unproven(), 2u);
  EXPECT_EQ(admission.Connect(Tcp(5, "c")), Verdict::kLetIn) << "b's is proven";
  EXPECT_FALSE(MayCall(admission, "a", 40001, "guess"));
  EXPECT_EQ(admission.Connect(Tcp(6, "a")), Verdict::kFull) << "a guess proves nothing";
}

TEST(AdmissionTest, AConnectionIsProvenOnceAndCountedUntilItEnds) {
  Admission admission(kOwn, {"secret"}, Few());
  EXPECT_EQ(admission.Connect(Tcp(1, "a")), Verdict::kLetIn);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(MayCall(admission, "a", 40001, "secret"));
  EXPECT_EQ(admission.unproven(), 0u);
  EXPECT_EQ(admission.connections(), 1u);
  EXPECT_EQ(admission.Connect(Tcp(2, "a")), Verdict::kLetIn);
  admission.Ended(2);
  admission.Ended(2);
  admission.Ended(1);
  EXPECT_EQ(admission.unproven(), 0u);
  EXPECT_EQ(admission.connections(), 0u);
}

TEST(AdmissionTest, AConnectionThatTookTheNumberOrThePlaceOfAnother) {
  Admission admission(kOwn, {"secret"}, Few());
  EXPECT_EQ(admission.Connect(Tcp(1, "a")), Verdict::kLetIn);
  EXPECT_EQ(admission.Connect(Tcp(1, "b")), Verdict::kLetIn) << "nobody said that the first ended";
  EXPECT_EQ(admission.connections(), 1u);
  EXPECT_EQ(admission.unproven(), 1u);
  Admission::Peer again = Tcp(2, "b");
  again.port = 40001;
  EXPECT_EQ(admission.Connect(again), Verdict::kLetIn);
  admission.Ended(1);
  EXPECT_TRUE(MayCall(admission, "b", 40001, "secret"));
  EXPECT_EQ(admission.unproven(), 0u) << "the newer one is meant";
}

TEST(AdmissionTest, ThereAreOnlySoManyConnectionsWhoeverTheyAre) {
  Admission admission(kOwn, {}, Few());
  for (uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(admission.Connect(Local(id, kOwn)), Verdict::kLetIn);
  }
  EXPECT_EQ(admission.Connect(Local(7, kOwn)), Verdict::kFull);
  admission.Ended(3);
  EXPECT_EQ(admission.Connect(Local(7, kOwn)), Verdict::kLetIn);
}

TEST(AdmissionTest, RefusalsAreToldEverMoreSeldom) {
  Admission admission(kOwn, {}, Few());
  int told = 0;
  for (int i = 0; i < 1000; ++i) told += admission.Refused().has_value() ? 1 : 0;
  EXPECT_EQ(told, 10);  // 1, 2, 4, ... 512
}

}  // namespace
}  // namespace lockstep::coordinator
