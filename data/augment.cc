// SPDX-License-Identifier: Apache-2.0
#include "data/augment.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"

namespace lockstep::data {
namespace {

// One plane, in place: rows are taken in the order in which none is overwritten before it is read.
void ChangePlane(const ImageChange& change, int64_t height, int64_t width, float black,
                 float* plane) {
  const int64_t right = change.right;
  const int64_t kept = width - std::abs(right);
  for (int64_t i = 0; i < height; ++i) {
    const int64_t y = change.down >= 0 ? i : height - 1 - i;
    const int64_t from = y + change.down;
    float* row = plane + y * width;
    if (from < 0 || from >= height) {
      std::fill(row, row + width, black);
      continue;
    }
    const float* source = plane + from * width;
    std::memmove(row + std::max<int64_t>(0, -right), source + std::max<int64_t>(0, right),
                 static_cast<size_t>(kept) * sizeof(float));
    if (right > 0) std::fill(row + kept, row + width, black);
    if (right < 0) std::fill(row, row - right, black);
    if (change.mirror) std::reverse(row, row + width);
  }
}

class AugmentedDataset : public Dataset {
 public:
  AugmentedDataset(std::unique_ptr<Dataset> base, const Augment& augment,
                   std::vector<float> padding)
      : base_(std::move(base)),
        augment_(augment),
        padding_(std::move(padding)),
        shape_(base_->fields()[0].shape) {}

  int64_t size() const override { return base_->size(); }
  const std::vector<FieldSpec>& fields() const override { return base_->fields(); }
  int64_t classes() const override { return base_->classes(); }
  size_t own_bytes() const override { return base_->own_bytes(); }
  InputOrigin origin() const override { return base_->origin(); }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    LS_RETURN_IF_ERROR(base_->ReadBatch(request, fields));
    const int64_t elements = base_->fields()[0].elements();
    auto* image = static_cast<float*>(fields[0]);
    for (size_t i = 0; i < request.indices.size(); ++i, image += elements) {
      const ImageChange change =
          ChangeOf(augment_, request.step, request.shard, static_cast<int64_t>(i));
      ApplyChange(change, shape_[0], shape_[1], shape_[2], padding_, image);
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Dataset> base_;
  const Augment augment_;
  const std::vector<float> padding_;
  const std::vector<int64_t> shape_;
};

}  // namespace

ImageChange ChangeOf(const Augment& augment, int64_t step, int shard, int64_t place) {
  const auto words = Philox4x32(
      {static_cast<uint32_t>(place), static_cast<uint32_t>(shard), static_cast<uint32_t>(step),
       static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32)},
      SiteKey(augment.seed, "augment"));
  // A multiplication instead of a remainder: no place is likelier than another by more than 2^-26.
  const auto offset = [&](uint32_t word) {
    const uint64_t places = 2 * static_cast<uint64_t>(augment.crop_padding) + 1;
    return static_cast<int>((uint64_t{word} * places) >> 32) - augment.crop_padding;
  };
  return {offset(words[0]), offset(words[1]), augment.flip && (words[2] >> 31) != 0};
}

void ApplyChange(const ImageChange& change, int64_t channels, int64_t height, int64_t width,
                 const std::vector<float>& padding, float* image) {
  if (change.down == 0 && change.right == 0 && !change.mirror) return;
  for (int64_t c = 0; c < channels; ++c) {
    const float black = padding[padding.size() == 1 ? 0 : static_cast<size_t>(c)];
    ChangePlane(change, height, width, black, image + c * height * width);
  }
}

absl::StatusOr<std::unique_ptr<Dataset>> AugmentImages(std::unique_ptr<Dataset> base,
                                                       const Augment& augment,
                                                       std::vector<float> padding) {
  const FieldSpec& field = base->fields()[0];
  if (field.name != "inputs" || field.type != FieldSpec::Type::kFloat32 ||
      field.shape.size() != 3) {
    return absl::InvalidArgumentError(
        "data.augment changes images, samples of [channels, height, width]: this data has none");
  }
  if (augment.crop_padding < 0 ||
      augment.crop_padding >= std::min(field.shape[1], field.shape[2])) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.augment.crop_padding ", augment.crop_padding, " is not smaller than ", "the images"));
  }
  LS_CHECK(padding.size() == 1 || static_cast<int64_t>(padding.size()) == field.shape[0]);
  return std::make_unique<AugmentedDataset>(std::move(base), augment, std::move(padding));
}

}  // namespace lockstep::data
