// SPDX-License-Identifier: Apache-2.0
// Text and files of tokens as samples for language models: sample i is the window of `length`
// tokens that begins at i x length, and its labels are the same window one token later. A masked
// sample of text is a window between special tokens, of which some are hidden; see dataset.h.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_DATA_TOKEN_WINDOWS_H_
#define LOCKSTEP_DATA_TOKEN_WINDOWS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// Tokens of masked samples beyond the 256 bytes.
inline constexpr int32_t kMaskToken = 256;
inline constexpr int32_t kFirstToken = 257;  // [CLS]
inline constexpr int32_t kSeparator = 258;   // [SEP]
inline constexpr int64_t kMaskedVocabulary = 259;

// Errors: InvalidArgument (length below 1 or a share outside its range), NotFound,
// FailedPrecondition (permission), DataLoss (too little text for one window).
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextSource& source, Split split);

// Errors: as OpenText; DataLoss also for a file that is not of its layout, InvalidArgument for a
// vocabulary of more than 65,536 with a file that has no header.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const TokensSource& source, Split split);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_TOKEN_WINDOWS_H_
