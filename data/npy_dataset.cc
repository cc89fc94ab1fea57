// SPDX-License-Identifier: Apache-2.0
#include "data/npy_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "data/array_dataset.h"
#include "data/npy.h"
#include "data/npy_tokens.h"

namespace lockstep::data {
namespace {

template <typename T>
absl::Status ReadLabels(const NpyArray& array, std::vector<int32_t>* labels) {
  for (int64_t i = 0; i < array.shape()[0]; ++i) {
    T value;
    std::memcpy(&value, array.values() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    if (static_cast<int64_t>(value) < 0 ||
        static_cast<int64_t>(value) > std::numeric_limits<int32_t>::max() - 1) {
      return absl::DataLossError(
          absl::StrCat("label ", static_cast<int64_t>(value), " of sample ", i,
                       static_cast<int64_t>(value) < 0 ? ": labels are whole numbers from 0"
                                                       : ": labels are below 2,147,483,647"));
    }
    labels->push_back(static_cast<int32_t>(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LabelsOf(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<NpyArray> array, NpyArray::Open(path));
  if (array->shape().size() != 1) {
    return absl::DataLossError(absl::StrCat(
        path, ": labels have ", array->shape().size(), " extents instead of 1",
        array->shape().size() == 2 ? " (one for each token needs data.npy.vocab)" : ""));
  }
  std::vector<int32_t> labels;
  absl::Status status = absl::DataLossError(
      absl::StrCat("labels must be uint8, int32 or int64, not ", Name(array->type())));
  if (array->type() == NpyType::kUInt8) status = ReadLabels<uint8_t>(*array, &labels);
  if (array->type() == NpyType::kInt32) status = ReadLabels<int32_t>(*array, &labels);
  if (array->type() == NpyType::kInt64) status = ReadLabels<int64_t>(*array, &labels);
  LS_RETURN_IF_ERROR(array->Check());
  if (!status.ok()) return Annotate(status, path);
  return labels;
}

int64_t ClassesOf(const std::vector<int32_t>& labels) {
  return labels.empty() ? 0 : int64_t{*std::max_element(labels.begin(), labels.end())} + 1;
}

absl::StatusOr<ArraySamples> InputsOf(const std::string& path, const NpySource& source) {
  LS_ASSIGN_OR_RETURN(std::shared_ptr<NpyArray> array, NpyArray::Open(path));
  if (array->shape().size() < 2) {
    return absl::DataLossError(absl::StrCat(path, ": inputs have the shape [",
                                            absl::StrJoin(array->shape(), ", "),
                                            "]; [samples, shape...] is needed"));
  }
  ArraySamples samples;
  samples.type = array->type();
  samples.raw_bytes = source.raw_bytes;
  samples.shape.assign(array->shape().begin() + 1, array->shape().end());
  size_t stride = SizeOf(array->type());
  for (const int64_t extent : samples.shape) stride *= static_cast<size_t>(extent);
  samples.stretches = {{array->values(), stride, array->shape()[0]}};
  const int64_t channels = samples.shape.size() == 3 ? samples.shape[0] : 1;
  LS_RETURN_IF_ERROR(SetNormalisation("data.npy", source.mean, source.std, channels, &samples));
  samples.check = [array = array.get()] { return array->Check(); };
  samples.owner = std::move(array);
  return samples;
}

// Checks that bytes of the test split's inputs, which are of `type`, are divided by 255 as those of
// the training split are, where these are named and there.
absl::Status CheckUnits(const NpySource& source, NpyType type) {
  if (source.raw_bytes || source.train_inputs.empty()) return absl::OkStatus();
  const auto trained = NpyArray::Open(source.train_inputs);
  if (absl::IsNotFound(trained.status())) return absl::OkStatus();
  LS_RETURN_IF_ERROR(trained.status());
  const NpyType other = (*trained)->type();
  if ((type == NpyType::kUInt8) == (other == NpyType::kUInt8)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source.train_inputs, " is ", Name(other), " and ", source.test_inputs, " ",
                   Name(type), type == NpyType::kUInt8 ? ", which" : ": the training inputs",
                   " alone would be divided by 255: save both alike"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const NpySource& source, Split split) {
  const bool train = split == Split::kTrain;
  const std::string& inputs = train ? source.train_inputs : source.test_inputs;
  const std::string& labels = train ? source.train_labels : source.test_labels;
  if (inputs.empty() || labels.empty()) {
    const char* prefix = train ? "train" : "test";
    return absl::NotFoundError(
        absl::StrCat("data.npy names no ", prefix, "_inputs and ", prefix, "_labels"));
  }
  if (source.vocab > 0) return OpenNpyTokens(source, split);
  LS_ASSIGN_OR_RETURN(ArraySamples samples, InputsOf(inputs, source));
  if (!train) LS_RETURN_IF_ERROR(CheckUnits(source, samples.type));
  LS_ASSIGN_OR_RETURN(samples.labels, LabelsOf(labels));
  samples.classes = source.classes > 0 ? source.classes : ClassesOf(samples.labels);
  if (!train && source.classes == 0 && !source.train_labels.empty()) {
    LS_ASSIGN_OR_RETURN(const std::vector<int32_t> trained, LabelsOf(source.train_labels));
    samples.classes = ClassesOf(trained);
  }
  if (samples.stretches[0].samples != static_cast<int64_t>(samples.labels.size())) {
    return absl::DataLossError(absl::StrCat(inputs, " has ", samples.stretches[0].samples,
                                            " samples, but ", labels, " has ",
                                            samples.labels.size()));
  }
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = MakeArrayDataset(std::move(samples));
  if (!dataset.ok()) return Annotate(dataset.status(), absl::StrCat(inputs, ", ", labels));
  return dataset;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyInputs(const std::string& path,
                                                       const NpySource& normalisation,
                                                       bool each_token) {
  if (normalisation.vocab > 0) return OpenNpyTokenInputs(path, normalisation, each_token);
  LS_ASSIGN_OR_RETURN(ArraySamples samples, InputsOf(path, normalisation));
  samples.labels.assign(static_cast<size_t>(samples.stretches[0].samples), 0);
  samples.classes = 1;
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = MakeArrayDataset(std::move(samples));
  if (!dataset.ok()) return Annotate(dataset.status(), path);
  return dataset;
}

}  // namespace lockstep::data
