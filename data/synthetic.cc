// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"
#include "data/rows.h"

namespace lockstep::data {
namespace {

// Noise is the sum of two windows into a bank of random numbers, at places that Philox gives each
// sample: 2^28 different sums at the price of two additions a feature.
constexpr uint32_t kWindows = 1 << 14;
constexpr float kMeanRange = 0.5f;   // class means are uniform in [-0.5, 0.5)
constexpr float kNoiseRange = 1.0f;  // each window is uniform in [-1, 1)

// `count` numbers uniform in [-range, range).
std::vector<float> Uniform(uint64_t key, int64_t count, float range) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i += 4) {
    const uint64_t block = static_cast<uint64_t>(i) / 4;
    const auto words =
        Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
    for (int64_t j = 0; j < 4 && i + j < count; ++j) {
      values[static_cast<size_t>(i + j)] =
          (2.0f * UniformFloat(words[static_cast<size_t>(j)]) - 1.0f) * range;
    }
  }
  return values;
}

constexpr int64_t kMaxFeatures = 16 << 20;

std::vector<int64_t> ShapeOf(const SyntheticSource& source) {
  return source.shape.empty() ? std::vector<int64_t>{source.features} : source.shape;
}

// Of one sample; 0 when an extent or the product is out of range.
int64_t FeaturesOf(const SyntheticSource& source) {
  int64_t product = 1;
  for (const int64_t extent : ShapeOf(source)) {
    if (extent < 1 || extent > kMaxFeatures / product) return 0;
    product *= extent;
  }
  return product;
}

class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const SyntheticSource& source, Split split)
      : size_(split == Split::kTrain ? source.train_samples : source.test_samples),
        features_(FeaturesOf(source)),
        classes_(source.classes),
        fields_(ClassificationFields(ShapeOf(source), source.classes)),
        sample_key_(SiteKey(
            source.seed, split == Split::kTrain ? "data.synthetic.train" : "data.synthetic.test")),
        means_(Uniform(SiteKey(source.seed, "data.synthetic.means"), features_ * classes_,
                       kMeanRange)),
        bank_(Uniform(SiteKey(source.seed, "data.synthetic.noise"), features_ + kWindows,
                      kNoiseRange)),
        kernels_(BestRowKernels()) {}

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    const absl::Span<const int64_t> indices = request.indices;
    auto* const samples = static_cast<float*>(fields[0]);
    auto* const labels = static_cast<int32_t*>(fields[1]);
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t index = indices[i];
      LS_CHECK(index >= 0 && index < size_) << index;
      const auto address = static_cast<uint64_t>(index);
      const auto words =
          Philox4x32({static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32), 0, 0},
                     sample_key_);
      const auto label =
          static_cast<int32_t>(uint64_t{words[0]} * static_cast<uint64_t>(classes_) >> 32);
      kernels_.add_three(means_.data() + label * features_, bank_.data() + words[1] % kWindows,
                         bank_.data() + words[2] % kWindows, features_,
                         samples + static_cast<int64_t>(i) * features_);
      labels[i] = label;
    }
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const int64_t features_;
  const int64_t classes_;
  const std::vector<FieldSpec> fields_;
  const uint64_t sample_key_;
  const std::vector<float> means_;
  const std::vector<float> bank_;
  const RowKernels& kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const SyntheticSource& source, Split split) {
  const int64_t features = FeaturesOf(source);
  if (source.train_samples < 1 || source.test_samples < 1 || features < 1 || source.classes < 1 ||
      source.classes > 1 << 20 || features * source.classes > int64_t{1} << 28) {
    return absl::InvalidArgumentError(absl::StrCat(
        "synthetic data with ", source.train_samples, " and ", source.test_samples, " samples, ",
        absl::StrJoin(ShapeOf(source), " x "), " features, ", source.classes,
        " classes: each must be at least 1, features x classes at most 2^28"));
  }
  return std::make_unique<SyntheticDataset>(source, split);
}

}  // namespace lockstep::data
