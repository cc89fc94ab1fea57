// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/tcp/wire.h"
#include "common/check.h"

namespace lockstep {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kNonceBytes = 32;
constexpr size_t kMacBytes = 32;
constexpr std::string_view kHelloMagic = "LSTCPHI1";
constexpr std::string_view kChallengeMagic = "LSTCPCH1";
constexpr std::string_view kRefusalMagic = "LSTCPNO1";
constexpr std::string_view kProofMagic = "LSTCPPR1";
constexpr std::string_view kWelcomeMagic = "LSTCPOK1";

struct HelloFields {
  uint32_t version = kWireVersion;
  uint32_t frame_bytes = kFrameBytes;
  int64_t generation = 0;
  int32_t from = 0;
  int32_t to = 0;
  uint8_t reserved[8] = {};
};
static_assert(kMagicBytes + sizeof(HelloFields) + kNonceBytes + kMacBytes == kHelloBytes);

std::string Random() {
  std::string bytes(kNonceBytes, '\0');
  LS_CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), kNonceBytes), 1);
  return bytes;
}

std::string Digest(std::string_view text) {
  std::string digest(kMacBytes, '\0');
  LS_CHECK_EQ(EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()),
                         nullptr, EVP_sha256(), nullptr),
              1);
  return digest;
}

// Returns what only who knows the secret can say about `spoken` in the role `label`.
std::string Mac(const std::string& secret, std::string_view label, const std::string& spoken) {
  const std::string text = absl::StrCat(std::string(label), ":", spoken);
  std::string mac(kMacBytes, '\0');
  unsigned int size = 0;
  LS_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                reinterpret_cast<unsigned char*>(mac.data()), &size) != nullptr);
  LS_CHECK_EQ(size, kMacBytes);
  return mac;
}

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

uint64_t SeedOf(const std::string& secret, const std::string& spoken) {
  const std::string mac = Mac(secret, "session", spoken);
  uint64_t seed = 0;
  std::memcpy(&seed, mac.data(), sizeof(seed));
  return seed;
}

}  // namespace

ClientHandshake::ClientHandshake(Identity identity, std::string secret)
    : secret_(std::move(secret)) {
  HelloFields fields;
  fields.generation = identity.generation;
  fields.from = identity.from;
  fields.to = identity.to;
  hello_.assign(kHelloMagic);
  hello_.append(reinterpret_cast<const char*>(&fields), sizeof(fields));
  hello_ += Digest(identity.job) + Random();
}

absl::StatusOr<std::string> ClientHandshake::Answer(std::string_view challenge) {
  LS_CHECK_EQ(challenge.size(), kChallengeBytes);
  const std::string_view magic = challenge.substr(0, kMagicBytes);
  if (magic == kRefusalMagic) {
    std::string why(challenge.substr(kMagicBytes));
    why.resize(std::min(why.find('\0'), why.size()));
    std::replace_if(
        why.begin(), why.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return absl::UnavailableError(why);
  }
  if (magic != kChallengeMagic) {
    return absl::FailedPreconditionError("something else answers there, not a worker");
  }
  spoken_ = absl::StrCat(hello_, std::string(challenge.substr(kMagicBytes, kNonceBytes)));
  if (!Same(challenge.substr(kMagicBytes + kNonceBytes), Mac(secret_, "server", spoken_))) {
    spoken_.clear();
    return absl::PermissionDeniedError("who answers there does not know the generation's secret");
  }
  return absl::StrCat(std::string(kProofMagic), Mac(secret_, "client", spoken_));
}

absl::Status ClientHandshake::Finish(std::string_view welcome) const {
  if (welcome.substr(0, kMagicBytes) == kWelcomeMagic &&
      Same(welcome.substr(kMagicBytes), Mac(secret_, "welcome", spoken_))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("the proof was not accepted");
}

uint64_t ClientHandshake::seed() const { return SeedOf(secret_, spoken_); }

ServerHandshake::ServerHandshake(Identity identity, std::string secret)
    : identity_(std::move(identity)), secret_(std::move(secret)) {}

absl::StatusOr<std::string> ServerHandshake::Answer(std::string_view hello, int* from) {
  LS_CHECK_EQ(hello.size(), kHelloBytes);
  if (hello.substr(0, kMagicBytes) != kHelloMagic) {
    return absl::FailedPreconditionError("no worker's hello");
  }
  HelloFields fields;
  std::memcpy(&fields, hello.data() + kMagicBytes, sizeof(fields));
  if (fields.version != kWireVersion || fields.frame_bytes != kFrameBytes) {
    return absl::FailedPreconditionError("the workers are of different builds");
  }
  const std::string_view job = hello.substr(kMagicBytes + sizeof(fields), kMacBytes);
  if (!Same(job, Digest(identity_.job))) return absl::FailedPreconditionError("another job");
  if (fields.generation != identity_.generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", identity_.generation, " is joined here"));
  }
  if (fields.to != identity_.to) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", identity_.to, " is here"));
  }
  *from = fields.from;
  const std::string nonce = Random();
  spoken_ = absl::StrCat(std::string(hello), nonce);
  return absl::StrCat(std::string(kChallengeMagic), nonce, Mac(secret_, "server", spoken_));
}

absl::StatusOr<std::string> ServerHandshake::Finish(std::string_view proof) const {
  if (proof.substr(0, kMagicBytes) == kProofMagic &&
      Same(proof.substr(kMagicBytes), Mac(secret_, "client", spoken_))) {
    return absl::StrCat(std::string(kWelcomeMagic), Mac(secret_, "welcome", spoken_));
  }
  return absl::PermissionDeniedError("a connection did not prove who it is");
}

uint64_t ServerHandshake::seed() const { return SeedOf(secret_, spoken_); }

std::string Refusal(std::string_view why) {
  std::string text = absl::StrCat(std::string(kRefusalMagic), std::string(why));
  text.resize(kChallengeBytes, '\0');
  return text;
}

}  // namespace lockstep
