// SPDX-License-Identifier: Apache-2.0
// Samples and labels of two .npy files as a data set.
// Thread-safety: functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_NPY_DATASET_H_
#define LOCKSTEP_DATA_NPY_DATASET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// The training labels say how many classes there are, for both splits. Errors: as Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const NpySource& source, Split split);

// The inputs of `path` alone, every label 0: for prediction. What they are as in NpySource; of
// tokens each may have a label (`each_token`). Errors: as Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyInputs(const std::string& path,
                                                       const NpySource& normalisation,
                                                       bool each_token = false);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_NPY_DATASET_H_
