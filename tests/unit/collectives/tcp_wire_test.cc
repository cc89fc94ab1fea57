// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/wire.h"

#include <string>

#include "collectives/tcp/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 0x1234567890abcdef;

FrameHeader SomeHeader() {
  FrameHeader header;
  header.kind = FrameKind::kData;
  header.dtype = DType::kFloat32;
  header.number = 7;
  header.operation.kind = OpKind::kTreeReduce;
  header.operation.generation = 3;
  header.operation.sequence = 41;
  header.operation.count = 1000;
  header.operation.step = 12;
  header.operation.bucket = 2;
  header.operation.layout = 99;
  header.operation.root = -1;
  header.offset = 640;
  header.bytes = 4096;
  header.part = 1;
  header.payload_hash = 42;
  return header;
}

std::string Encoded(const FrameHeader& header) {
  std::string text(kFrameBytes, '\0');
  EncodeFrame(header, kSeed, text.data());
  return text;
}

TEST(WireTest, AHeaderComesBackAsItWas) {
  const FrameHeader header = SomeHeader();
  const auto back = DecodeFrame(Encoded(header).data(), kSeed, 7, 3);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, header.kind);
  EXPECT_EQ(back->dtype, header.dtype);
  EXPECT_EQ(back->operation, header.operation);
  EXPECT_EQ(back->offset, header.offset);
  EXPECT_EQ(back->bytes, header.bytes);
  EXPECT_EQ(back->part, header.part);
  EXPECT_EQ(back->payload_hash, header.payload_hash);
}

TEST(WireTest, EveryFlippedBitIsSeen) {
  const std::string good = Encoded(SomeHeader());
  for (size_t bit = 0; bit < 8 * kFrameBytes; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeFrame(bad.data(), kSeed, 7, 3).status().code(), absl::StatusCode::kDataLoss)
        << "bit " << bit;
  }
  std::string payload(1000, 'x');
  const uint64_t hash = PayloadHash(payload.data(), payload.size());
  for (size_t i = 0; i < payload.size(); ++i) {
    std::string bad = payload;
    bad[i] ^= 1;
    ASSERT_NE(PayloadHash(bad.data(), bad.size()), hash) << i;
  }
}

TEST(WireTest, AFrameOfAnotherPlaceIsSeen) {
  const std::string text = Encoded(SomeHeader());
  const auto message = [&](uint64_t seed, uint64_t number, int64_t generation) {
    return std::string(DecodeFrame(text.data(), seed, number, generation).status().message());
  };
  EXPECT_THAT(message(kSeed + 1, 7, 3), HasSubstr("checksum"));
  EXPECT_THAT(message(kSeed, 8, 3), HasSubstr("number 7 where 8 was due"));
  EXPECT_THAT(message(kSeed, 7, 4), HasSubstr("generation 3"));
}

TEST(WireTest, WhatNobodySendsIsRefused) {
  FrameHeader header = SomeHeader();
  header.bytes = kMostPayload + 1;
  EXPECT_FALSE(DecodeFrame(Encoded(header).data(), kSeed, 7, 3).ok());
  header = SomeHeader();
  header.kind = static_cast<FrameKind>(77);
  EXPECT_FALSE(DecodeFrame(Encoded(header).data(), kSeed, 7, 3).ok());
}

TEST(WireTest, AGoodbyeTellsWhy) {
  const Goodbye goodbye{absl::StatusCode::kAborted, {EndCause::kPeerDied, 5}, "rank 5 died", 12};
  std::string payload;
  const FrameHeader header = GoodbyeFrame(goodbye, &payload);
  const Goodbye back = ParseGoodbye(header, payload);
  EXPECT_EQ(back.code, goodbye.code);
  EXPECT_EQ(back.end, goodbye.end);
  EXPECT_EQ(back.text, goodbye.text);
  EXPECT_EQ(back.completed, 12);
}

TEST(AddressTest, NumericAddressesOfBothFamilies) {
  for (const char* text : {"10.0.0.1:41234", "[fd00::1]:80", "[::1]:65535"}) {
    const auto address = ParseSocketAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  for (const char* text : {"", ":1", "host:80", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0",
                           "10.0.0.1:65536", "fd00::1:80", "[fd00::1:80", "[host]:80", "[]:1"}) {
    EXPECT_EQ(ParseSocketAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace lockstep
