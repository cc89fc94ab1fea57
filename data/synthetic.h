// SPDX-License-Identifier: Apache-2.0
// A made-up classification task that a linear model can learn: sample = mean of its class + noise.
// Everything is addressed by (seed, split, sample), so every process sees the same data without a
// file. Thread-safety: functions; the data set is immutable.
#ifndef LOCKSTEP_DATA_SYNTHETIC_H_
#define LOCKSTEP_DATA_SYNTHETIC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// The class means depend on the seed alone; test samples are other samples of the same classes.
// Errors: InvalidArgument (sizes below 1, over 1 Mi classes or 16 Mi features).
absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const SyntheticSource& source, Split split);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_SYNTHETIC_H_
