// SPDX-License-Identifier: Apache-2.0
#include "data/array_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "data/rows.h"

namespace lockstep::data {
namespace {

// Unaligned values of `type` as floats.
template <typename T>
void ScaleValues(const uint8_t* in, int64_t count, float scale, float shift, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value) * scale + shift;
  }
}

class ArrayDataset : public Dataset {
 public:
  explicit ArrayDataset(ArraySamples samples)
      : samples_(std::move(samples)),
        fields_(ClassificationFields(samples_.shape, samples_.classes)),
        kernels_(BestRowKernels()) {
    for (const Stretch& stretch : samples_.stretches) {
      begins_.push_back(size_);
      size_ += stretch.samples;
    }
    elements_ = fields_[0].elements();
  }

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return samples_.classes; }
  size_t own_bytes() const override {
    return samples_.own_bytes + samples_.labels.size() * sizeof(int32_t);
  }
  InputOrigin origin() const override { return {Name(samples_.type), samples_.columns}; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    auto* out = static_cast<float*>(fields[0]);
    auto* const labels = static_cast<int32_t*>(fields[1]);
    for (size_t i = 0; i < request.indices.size(); ++i) {
      const int64_t index = request.indices[i];
      LS_CHECK(index >= 0 && index < size_) << index;
      ReadSample(SampleAt(index), out);
      out += elements_;
      labels[i] = samples_.labels[static_cast<size_t>(index)];
    }
    return samples_.check ? samples_.check() : absl::OkStatus();
  }

 private:
  const uint8_t* SampleAt(int64_t index) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
    const auto which = static_cast<size_t>(after - begins_.begin()) - 1;
    const Stretch& stretch = samples_.stretches[which];
    return stretch.data + static_cast<size_t>(index - begins_[which]) * stretch.stride;
  }

  void ReadSample(const uint8_t* sample, float* out) const {
    const auto channels = static_cast<int64_t>(samples_.scale.size());
    const int64_t each = elements_ / channels;
    const size_t bytes = static_cast<size_t>(each) * SizeOf(samples_.type);
    for (int64_t c = 0; c < channels; ++c) {
      const float scale = samples_.scale[static_cast<size_t>(c)];
      const float shift = samples_.shift[static_cast<size_t>(c)];
      const uint8_t* in = sample + static_cast<size_t>(c) * bytes;
      switch (samples_.type) {
        case NpyType::kUInt8:
          kernels_.scale_bytes(in, each, scale, shift, out + c * each);
          break;
        case NpyType::kFloat32:
          ScaleValues<float>(in, each, scale, shift, out + c * each);
          break;
        case NpyType::kFloat64:
          ScaleValues<double>(in, each, scale, shift, out + c * each);
          break;
        case NpyType::kInt32:
          ScaleValues<int32_t>(in, each, scale, shift, out + c * each);
          break;
        case NpyType::kInt64:
          ScaleValues<int64_t>(in, each, scale, shift, out + c * each);
          break;
      }
    }
  }

  const ArraySamples samples_;
  const std::vector<FieldSpec> fields_;
  const RowKernels& kernels_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
  int64_t elements_ = 0;
};

}  // namespace

absl::Status SetNormalisation(const std::string& what, const std::vector<double>& mean,
                              const std::vector<double>& std, int64_t channels,
                              ArraySamples* samples) {
  const auto fits = [&](const std::vector<double>& values) {
    return values.size() <= 1 || static_cast<int64_t>(values.size()) == channels;
  };
  if (!fits(mean) || !fits(std)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ".mean and std take one number, or one for each of the ", channels, " channels"));
  }
  const size_t count = std::max({size_t{1}, mean.size(), std.size()});
  samples->scale.clear();
  samples->shift.clear();
  for (size_t c = 0; c < count; ++c) {
    const auto at = [&](const std::vector<double>& values, double otherwise) {
      return values.empty() ? otherwise : values[values.size() == 1 ? 0 : c];
    };
    const double m = at(mean, 0), s = at(std, 1);
    if (!(s > 0) || !std::isfinite(m) || !std::isfinite(s)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": mean ", m, " and std ", s, ": std must be positive, both finite"));
    }
    const bool pixels = samples->type == NpyType::kUInt8 && !samples->raw_bytes;
    const double unit = pixels ? 255.0 : 1.0;
    samples->scale.push_back(static_cast<float>(1.0 / (unit * s)));
    samples->shift.push_back(static_cast<float>(-m / s));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Dataset>> MakeArrayDataset(ArraySamples samples) {
  int64_t count = 0, elements = 1;
  for (const Stretch& stretch : samples.stretches) count += stretch.samples;
  for (const int64_t extent : samples.shape) elements *= extent;
  if (count == 0 || elements == 0) {
    return absl::InvalidArgumentError("there are no samples, or they are empty");
  }
  LS_CHECK_EQ(count, static_cast<int64_t>(samples.labels.size()));
  LS_CHECK_EQ(samples.scale.size(), samples.shift.size());
  LS_CHECK_EQ(elements % static_cast<int64_t>(samples.scale.size()), 0);
  for (size_t i = 0; i < samples.labels.size(); ++i) {
    if (samples.labels[i] >= 0 && samples.labels[i] < samples.classes) continue;
    return absl::DataLossError(absl::StrCat("label ", samples.labels[i], " of sample ", i,
                                            ", but there are ", samples.classes, " classes"));
  }
  return std::make_unique<ArrayDataset>(std::move(samples));
}

}  // namespace lockstep::data
