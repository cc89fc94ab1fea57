// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
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

absl::StatusOr<HashedFile> HashFile(const std::string& path, const std::function<bool()>& go_on) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  Sha256 hash;
  HashedFile hashed;
  std::vector<char> buffer(256 << 10);
  while (true) {
    if (go_on != nullptr && !go_on()) return absl::CancelledError("given up");
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) break;
    hash.Update(buffer.data(), static_cast<size_t>(n));
    hashed.bytes += static_cast<uint64_t>(n);
  }
  hashed.sha256 = hash.FinishHex();
  return hashed;
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  LS_ASSIGN_OR_RETURN(HashedFile hashed, HashFile(path, nullptr));
  return std::move(hashed.sha256);
}

}  // namespace lockstep::checkpoint
