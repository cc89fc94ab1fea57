// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep::checkpoint {

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

absl::StatusOr<HashedFile> HashFile(Storage* storage, const std::string& path,
                                    const std::function<bool()>& go_on) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Storage::Source> file, storage->Open(path));
  Sha256 hash;
  HashedFile hashed;
  std::vector<char> buffer(256 << 10);
  while (hashed.bytes < file->size()) {
    if (go_on != nullptr && !go_on()) return absl::CancelledError("given up");
    const size_t piece = std::min<uint64_t>(buffer.size(), file->size() - hashed.bytes);
    LS_RETURN_IF_ERROR(file->ReadAt(hashed.bytes, buffer.data(), piece));
    hash.Update(buffer.data(), piece);
    hashed.bytes += piece;
  }
  hashed.sha256 = hash.FinishHex();
  return hashed;
}

FileMatch MatchFile(Storage* storage, const std::string& path, const std::string& sha256,
                    const std::function<bool()>& go_on) {
  const absl::StatusOr<HashedFile> hashed = HashFile(storage, path, go_on);
  if (hashed.ok()) return hashed->sha256 == sha256 ? FileMatch::kSame : FileMatch::kOther;
  const bool other = absl::IsNotFound(hashed.status()) || absl::IsDataLoss(hashed.status());
  return other ? FileMatch::kOther : FileMatch::kUnknown;
}

}  // namespace lockstep::checkpoint
