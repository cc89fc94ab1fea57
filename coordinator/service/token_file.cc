// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/token_file.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kTokenBytes = 32;

}  // namespace

absl::StatusOr<std::string> ReadOrMakeToken(const std::string& file) {
  absl::StatusOr<std::string> token = ReadToken(file);
  if (!absl::IsNotFound(token.status())) return token;
  LS_RETURN_IF_ERROR(WritePrivateFile(file, "token file",
                                      absl::StrCat(RandomHex(kTokenBytes), "\n"),
                                      /*replace=*/false));
  return ReadToken(file);
}

absl::StatusOr<TokenLinkFile> TokenLinkFile::Make(const std::string& token_file,
                                                  const std::string& link) {
  std::error_code ignored;
  const std::string target = std::filesystem::absolute(token_file, ignored);
  const std::string fresh = absl::StrCat(link, ".", RandomHex(8));
  if (::symlink(target.c_str(), fresh.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make ", link));
  }
  if (::rename(fresh.c_str(), link.c_str()) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return ErrnoStatus(why, absl::StrCat("cannot make ", link));
  }
  TokenLinkFile made;
  made.link_ = link;
  return made;
}

TokenLinkFile::TokenLinkFile(TokenLinkFile&& other) noexcept
    : link_(std::exchange(other.link_, {})) {}

TokenLinkFile& TokenLinkFile::operator=(TokenLinkFile&& other) noexcept {
  std::swap(link_, other.link_);
  return *this;
}

TokenLinkFile::~TokenLinkFile() {
  if (!link_.empty()) ::unlink(link_.c_str());
}

}  // namespace lockstep::coordinator
