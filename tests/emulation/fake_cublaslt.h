// SPDX-License-Identifier: Apache-2.0
// cuBLASLt for tests (LOCKSTEP_CUBLASLT_LIBRARY): a library of its own that computes nothing and
// answers as strictly as the real one documents: which products, epilogues and types it has, how
// the parts of a split k are added up, and whose device a handle is. Thread-safety: one thread at a
// time.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_CUBLASLT_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_CUBLASLT_H_

#include <cstdint>

namespace lockstep::fake_cublaslt {

// What tests may set and read.
struct Settings {
  int device = 0;                // that is current
  bool heeds_reductions = true;  // false: algorithms may add as the preference does not allow
  uint32_t reductions = 0;       // that the last choice allowed
  int handles = 0;               // that were made
  int runs = 0;
  // Of the last run: what C is, where D goes, and what C is multiplied with.
  const void* c = nullptr;
  const void* d = nullptr;
  float beta = 0;
};

// The library's one further symbol: Settings* fake_cublaslt_settings().
inline constexpr const char* kSettingsSymbol = "fake_cublaslt_settings";

}  // namespace lockstep::fake_cublaslt

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_CUBLASLT_H_
