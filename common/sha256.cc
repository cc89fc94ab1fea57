// SPDX-License-Identifier: Apache-2.0
#include "common/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace lockstep {

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  LS_CHECK(state_->context != nullptr);
  LS_CHECK_EQ(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t bytes) {
  LS_CHECK_EQ(EVP_DigestUpdate(state_->context.get(), data, bytes), 1);
}

std::string Sha256::FinishHex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  LS_CHECK_EQ(EVP_DigestFinal_ex(state_->context.get(), digest, &length), 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

std::string Sha256Hex(std::string_view data) {
  Sha256 hash;
  hash.Update(data.data(), data.size());
  return hash.FinishHex();
}

}  // namespace lockstep
