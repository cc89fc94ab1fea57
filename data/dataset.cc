// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/status.h"
#include "data/augment.h"
#include "data/cifar.h"
#include "data/csv.h"
#include "data/image_dataset.h"
#include "data/npy_dataset.h"
#include "data/synthetic.h"
#include "data/token_windows.h"

namespace lockstep::data {
namespace {

struct Opener {
  Split split;
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const SyntheticSource& source) const {
    return OpenSynthetic(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const FashionMnistSource& source) const {
    return OpenFashionMnist(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const IdxSource& source) const {
    return OpenIdx(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const TextSource& source) const {
    return OpenText(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const TokensSource& source) const {
    return OpenTokens(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const Cifar10Source& source) const {
    return OpenCifar10(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const NpySource& source) const {
    return OpenNpy(source, split);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> operator()(const CsvSource& source) const {
    return OpenCsv(source, split);
  }
};

// Returns what a black pixel is after normalisation, for each channel or for all.
std::vector<float> BlackOf(const std::vector<double>& mean, const std::vector<double>& std) {
  std::vector<float> black;
  for (size_t c = 0; c < std::max({size_t{1}, mean.size(), std.size()}); ++c) {
    const double m = mean.empty() ? 0 : mean[mean.size() == 1 ? 0 : c];
    const double s = std.empty() ? 1 : std[std.size() == 1 ? 0 : c];
    black.push_back(static_cast<float>(-m / s));
  }
  return black;
}
struct Black {
  std::vector<float> operator()(const SyntheticSource&) const { return {0}; }
  std::vector<float> operator()(const FashionMnistSource& source) const {
    return BlackOf({source.mean}, {source.std});
  }
  std::vector<float> operator()(const IdxSource& source) const {
    return BlackOf({source.mean}, {source.std});
  }
  std::vector<float> operator()(const Cifar10Source& source) const {
    return BlackOf(source.mean.empty() ? Cifar10Mean() : source.mean,
                   source.std.empty() ? Cifar10Std() : source.std);
  }
  std::vector<float> operator()(const NpySource& source) const {
    return BlackOf(source.mean, source.std);
  }
  std::vector<float> operator()(const CsvSource&) const { return {0}; }
  std::vector<float> operator()(const TextSource&) const { return {0}; }
  std::vector<float> operator()(const TokensSource&) const { return {0}; }
};

}  // namespace

std::vector<FieldSpec> ClassificationFields(std::vector<int64_t> sample_shape, int64_t classes) {
  return {{"inputs", FieldSpec::Type::kFloat32, std::move(sample_shape), 0},
          {kLabelsField, FieldSpec::Type::kInt32, {}, classes}};
}

int64_t TargetsPerSample(const Dataset& dataset) {
  for (const FieldSpec& field : dataset.fields()) {
    if (field.name == kLabelsField) return field.elements();
  }
  return 1;
}

absl::StatusOr<std::unique_ptr<Dataset>> Open(const Source& source, Split split,
                                              const Augment& augment) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Dataset> dataset, std::visit(Opener{split}, source));
  if (split == Split::kTest || !augment.any()) return dataset;
  return AugmentImages(std::move(dataset), augment, std::visit(Black{}, source));
}

}  // namespace lockstep::data
