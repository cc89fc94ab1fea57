// SPDX-License-Identifier: Apache-2.0
// A data set with random access: sample i of n, always the same bytes.
// Thread-safety: immutable after opening; ReadBatch may be called by several threads.
#ifndef LOCKSTEP_DATA_DATASET_H_
#define LOCKSTEP_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Shape of one sample, such as {1, 28, 28}.
  virtual const std::vector<int64_t>& sample_shape() const = 0;
  virtual int64_t classes() const = 0;
  // Writes the samples `indices` (normalised, fp32, [indices.size(), sample]) and their labels.
  // Does not allocate. Errors: DataLoss.
  virtual absl::Status ReadBatch(absl::Span<const int64_t> indices, float* samples,
                                 int32_t* labels) const = 0;
};

struct SyntheticSource {
  int64_t train_samples = 60000;
  int64_t test_samples = 10000;
  int64_t features = 784;
  int classes = 10;
  uint64_t seed = 0;
};
struct FashionMnistSource {
  std::string path;  // empty: where the distribution's package puts it
  double mean = 0.2860;
  double std = 0.3530;
};
struct IdxSource {
  std::string train_images, train_labels, test_images, test_labels;
  double mean = 0;
  double std = 1;
};
using Source = std::variant<SyntheticSource, FashionMnistSource, IdxSource>;

enum class Split { kTrain, kTest };

// Opens a split. Decoded images are shared by the workers of a host (one decode a host, kept in the
// user's cache folder; without space or permission for it each worker decodes for itself, with a
// warning). Errors: NotFound (says where it looked and how to install or name the data),
// DataLoss (names file and offset).
absl::StatusOr<std::unique_ptr<Dataset>> Open(const Source& source, Split split);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_DATASET_H_
