// SPDX-License-Identifier: Apache-2.0
// Token numbers in two .npy files as a data set, for transformers: inputs [samples, length], labels
// [samples] (one class each) or [samples, length] (a token each; negative: not a target).
// Thread-safety: functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_NPY_TOKENS_H_
#define LOCKSTEP_DATA_NPY_TOKENS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// Fields: "tokens" i32 [length], "lengths" i32 [] when the source names a padding token (how many
// tokens of a sample come before its padding at the end, at least 1), "labels". Classes: those of
// the training labels, or the vocabulary where each token has a label. REQUIRES: source.vocab > 0.
// Errors: as Open (dataset.h); DataLoss also for a token that is not below the vocabulary.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyTokens(const NpySource& source, Split split);

// The tokens of `path` alone, with a label 0 for each sample, or for each token (`each`): for
// prediction. Errors: the same.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyTokenInputs(const std::string& path,
                                                            const NpySource& source, bool each);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_NPY_TOKENS_H_
