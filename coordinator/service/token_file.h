// SPDX-License-Identifier: Apache-2.0
// The coordinator's side of its token (coordinator/client/token.h): made once, and where the verbs
// of the same user find it. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_TOKEN_FILE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_TOKEN_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::coordinator {

// The token in `file`; a new one of 256 random bits, which only this user can read, when there is
// no such file. Errors: as ReadToken and open(2).
absl::StatusOr<std::string> ReadOrMakeToken(const std::string& file);

// A link at `link` to the token's file for as long as this lives.
class TokenLinkFile {
 public:
  // Errors: as symlink(2).
  static absl::StatusOr<TokenLinkFile> Make(const std::string& token_file, const std::string& link);
  TokenLinkFile() = default;
  TokenLinkFile(TokenLinkFile&& other) noexcept;
  TokenLinkFile& operator=(TokenLinkFile&& other) noexcept;
  ~TokenLinkFile();

 private:
  std::string link_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_TOKEN_FILE_H_
