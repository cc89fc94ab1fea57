// SPDX-License-Identifier: Apache-2.0
// Samples that lie in memory one after the other, in one or more stretches, with one label each:
// what arrays, tables and CIFAR's files become. Values are converted to fp32, scaled and shifted
// when they are read, with factors of their own for each channel.
// Thread-safety: functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_ARRAY_DATASET_H_
#define LOCKSTEP_DATA_ARRAY_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "data/npy.h"

namespace lockstep::data {

// `samples` samples, the first one at `data`, each `stride` bytes after the one before.
struct Stretch {
  const uint8_t* data = nullptr;
  size_t stride = 0;
  int64_t samples = 0;
};

struct ArraySamples {
  std::vector<Stretch> stretches;
  NpyType type = NpyType::kUInt8;
  bool raw_bytes = false;            // of uint8: see SetNormalisation
  std::vector<std::string> columns;  // InputOrigin::columns
  std::vector<int64_t> shape;        // of one sample
  std::vector<int32_t> labels;       // of all samples
  int64_t classes = 0;
  // value * scale + shift; one of each, or one for each index of the sample's first extent.
  std::vector<float> scale = {1};
  std::vector<float> shift = {0};
  std::shared_ptr<const void> owner;  // keeps the memory
  size_t own_bytes = 0;               // of that memory, as Dataset::own_bytes
  // Whether what was read of the stretches is good, where they are mapped files. May be empty.
  std::function<absl::Status()> check;
};

// scale and shift for (value - mean) / std; uint8 values are first divided by 255, unless raw_bytes
// is set. `mean` and `std` have one number, or one for each of `channels`, or none (0 and 1).
// Errors: InvalidArgument naming `what` (such as "data.npy").
absl::Status SetNormalisation(const std::string& what, const std::vector<double>& mean,
                              const std::vector<double>& std, int64_t channels,
                              ArraySamples* samples);

// The number of stretches' samples is that of the labels. Errors: DataLoss for a label that is not
// in [0, classes); InvalidArgument for empty samples.
absl::StatusOr<std::unique_ptr<Dataset>> MakeArrayDataset(ArraySamples samples);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_ARRAY_DATASET_H_
