// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), by OpenSSL.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COMMON_SHA256_H_
#define LOCKSTEP_COMMON_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  // The digest goes on over `bytes` bytes at `data`, which are only read. REQUIRES: no FinishHex
  // before.
  void Update(const void* data, size_t bytes);
  // The digest of all that was given, 64 hex digits in lower case. Called once.
  std::string FinishHex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of `data`, 64 hex digits in lower case.
std::string Sha256Hex(std::string_view data);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_SHA256_H_
