// SPDX-License-Identifier: Apache-2.0
// CIFAR-10 in its binary version: records of one label byte and 3,072 pixels (three planes of
// 32 x 32). The files are mapped; pixels stay bytes and are normalised when read.
// Thread-safety: functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_CIFAR_H_
#define LOCKSTEP_DATA_CIFAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/dataset.h"

namespace lockstep::data {

// Means and deviations of the 50,000 training images, for each channel, pixels in [0, 1].
inline std::vector<double> Cifar10Mean() { return {0.4914, 0.4822, 0.4465}; }
// The deviations, likewise.
inline std::vector<double> Cifar10Std() { return {0.2470, 0.2435, 0.2616}; }

inline constexpr size_t kCifarRecord = 1 + 3 * 32 * 32;

// The labels of a file's records. Errors: DataLoss (a length that is no multiple of the record, no
// record, a label above 9; the caller adds the file's name).
absl::StatusOr<std::vector<int32_t>> ParseCifar(absl::Span<const uint8_t> bytes);

// data_batch_*.bin in the order of their names, or test_batch.bin. Errors: as Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Source& source, Split split);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_CIFAR_H_
