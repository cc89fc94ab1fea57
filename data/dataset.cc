// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <utility>
#include <variant>

#include "data/image_dataset.h"
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
};

}  // namespace

std::vector<FieldSpec> ClassificationFields(std::vector<int64_t> sample_shape, int64_t classes) {
  return {{"inputs", FieldSpec::Type::kFloat32, std::move(sample_shape), 0},
          {kLabelsField, FieldSpec::Type::kInt32, {}, classes}};
}

absl::StatusOr<std::unique_ptr<Dataset>> Open(const Source& source, Split split) {
  return std::visit(Opener{split}, source);
}

}  // namespace lockstep::data
