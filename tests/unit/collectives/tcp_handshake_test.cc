// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/handshake.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const Identity kIdentity{"job-1", 5, 2, 0};

TEST(HandshakeTest, TwoThatKnowTheSecretFindEachOther) {
  ClientHandshake client(kIdentity, "secret");
  ServerHandshake server(kIdentity, "secret");
  ASSERT_EQ(client.hello().size(), kHelloBytes);
  int from = -1;
  const auto challenge = server.Answer(client.hello(), &from);
  ASSERT_TRUE(challenge.ok()) << challenge.status();
  EXPECT_EQ(from, 2);
  ASSERT_EQ(challenge->size(), kChallengeBytes);
  const auto proof = client.Answer(*challenge);
  ASSERT_TRUE(proof.ok()) << proof.status();
  ASSERT_EQ(proof->size(), kProofBytes);
  const auto welcome = server.Finish(*proof);
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  ASSERT_EQ(welcome->size(), kWelcomeBytes);
  EXPECT_TRUE(client.Finish(*welcome).ok());
  EXPECT_EQ(client.seed(), server.seed());
}

TEST(HandshakeTest, NeitherTakesOneThatDoesNotKnowTheSecret) {
  int from = -1;
  ClientHandshake client(kIdentity, "secret");
  ServerHandshake stranger(kIdentity, "guess");
  EXPECT_EQ(client.Answer(*stranger.Answer(client.hello(), &from)).status().code(),
            absl::StatusCode::kPermissionDenied);
  // The client that does not check the server is turned away as well.
  ServerHandshake server(kIdentity, "secret");
  ASSERT_TRUE(server.Answer(client.hello(), &from).ok());
  EXPECT_EQ(server.Finish("LSTCPPR1" + std::string(32, 'x')).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(HandshakeTest, ARecordedConversationIsWorthNothing) {
  int from = -1;
  ClientHandshake client(kIdentity, "secret");
  ServerHandshake server(kIdentity, "secret");
  const std::string challenge = *server.Answer(client.hello(), &from);
  const std::string proof = *client.Answer(challenge);
  const std::string welcome = *server.Finish(proof);
  // The same words to a new connection of either.
  ServerHandshake again(kIdentity, "secret");
  ASSERT_TRUE(again.Answer(client.hello(), &from).ok());
  EXPECT_FALSE(again.Finish(proof).ok());
  ClientHandshake other(kIdentity, "secret");
  EXPECT_FALSE(other.Answer(challenge).ok());
  // The server's own proof is no client's.
  EXPECT_FALSE(again.Finish("LSTCPPR1" + challenge.substr(40)).ok());
}

TEST(HandshakeTest, AnotherJobGenerationOrRankIsRefused) {
  const auto refused = [](const Identity& comes) {
    ClientHandshake client(comes, "secret");
    ServerHandshake server(kIdentity, "secret");
    int from = -1;
    const auto challenge = server.Answer(client.hello(), &from);
    EXPECT_EQ(challenge.status().code(), absl::StatusCode::kFailedPrecondition);
    const std::string why(challenge.status().message());
    const auto told = client.Answer(Refusal(why));
    EXPECT_EQ(told.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(std::string(told.status().message()), why);
    return why;
  };
  EXPECT_THAT(refused({"job-2", 5, 2, 0}), HasSubstr("another job"));
  EXPECT_THAT(refused({"job-1", 4, 2, 0}), HasSubstr("generation 5"));
  EXPECT_THAT(refused({"job-1", 5, 2, 1}), HasSubstr("rank 0"));
}

TEST(HandshakeTest, WhatIsNoWorkerIsRecognised) {
  ServerHandshake server(kIdentity, "secret");
  int from = -1;
  std::string http = "GET / HTTP/1.1";
  http.resize(kHelloBytes, '\n');
  EXPECT_FALSE(server.Answer(http, &from).ok());
  ClientHandshake client(kIdentity, "secret");
  EXPECT_THAT(std::string(client.Answer(std::string(kChallengeBytes, 'H')).status().message()),
              HasSubstr("not a worker"));
}

}  // namespace
}  // namespace lockstep
