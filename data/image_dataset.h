// SPDX-License-Identifier: Apache-2.0
// Images and labels of two IDX files as a data set. Pixels stay bytes and are normalised when read.
// Thread-safety: functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_IMAGE_DATASET_H_
#define LOCKSTEP_DATA_IMAGE_DATASET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr char kFashionMnistFolder[] = "/usr/share/datasets/fashion-mnist";

// Errors: as Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenFashionMnist(const FashionMnistSource& source,
                                                          Split split);
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const IdxSource& source, Split split);

// The images of one file, every label 0: for prediction. `raw_bytes` as in IdxSource. Errors: as
// Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxInputs(const std::string& path,
                                                       const std::vector<double>& mean,
                                                       const std::vector<double>& std,
                                                       bool raw_bytes = false);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_IMAGE_DATASET_H_
