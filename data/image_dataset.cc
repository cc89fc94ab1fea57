// SPDX-License-Identifier: Apache-2.0
#include "data/image_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "data/array_dataset.h"
#include "data/idx.h"
#include "data/rows.h"

namespace lockstep::data {
namespace {

// What a white pixel is divided by.
constexpr double kPixelUnit = 255;

class ImageDataset : public Dataset {
 public:
  ImageDataset(std::unique_ptr<IdxArray> images, std::unique_ptr<IdxArray> labels, int64_t classes,
               double mean, double std, double unit)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        classes_(classes),
        scale_(static_cast<float>(1.0 / (unit * std))),
        shift_(static_cast<float>(-mean / std)),
        kernels_(BestRowKernels()) {
    const std::vector<int64_t>& dims = images_->dims();
    // Images without a channel dimension have one channel.
    std::vector<int64_t> shape;
    if (dims.size() == 3) shape.push_back(1);
    shape.insert(shape.end(), dims.begin() + 1, dims.end());
    for (const int64_t dim : shape) sample_size_ *= dim;
    fields_ = ClassificationFields(shape, classes);
  }

  int64_t size() const override { return images_->dims()[0]; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }
  InputOrigin origin() const override { return {"uint8", {}}; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    const absl::Span<const int64_t> indices = request.indices;
    auto* const samples = static_cast<float*>(fields[0]);
    auto* const labels = static_cast<int32_t*>(fields[1]);
    const uint8_t* pixels = images_->values().data();
    const uint8_t* classes = labels_->values().data();
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t index = indices[i];
      LS_CHECK(index >= 0 && index < size()) << index;
      // The next row is fetched meanwhile: a shuffled order defeats the hardware's prefetcher.
      if (i + 1 < indices.size()) Prefetch(pixels + indices[i + 1] * sample_size_);
      kernels_.scale_bytes(pixels + index * sample_size_, sample_size_, scale_, shift_,
                           samples + static_cast<int64_t>(i) * sample_size_);
      labels[i] = classes[index];
    }
    LS_RETURN_IF_ERROR(images_->Check());
    return labels_->Check();
  }

 private:
  void Prefetch(const uint8_t* row) const {
    const int64_t bytes = std::min<int64_t>(sample_size_, 2048);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  }

  const std::unique_ptr<IdxArray> images_;
  const std::unique_ptr<IdxArray> labels_;
  const int64_t classes_;
  const float scale_;
  const float shift_;
  const RowKernels& kernels_;
  std::vector<FieldSpec> fields_;
  int64_t sample_size_ = 1;
};

// `path`, or `path` with or without ".gz" where only that one is there.
absl::StatusOr<std::string> FindEither(const std::string& path, const std::string& advice) {
  const std::string other =
      path.ends_with(".gz") ? path.substr(0, path.size() - 3) : absl::StrCat(path, ".gz");
  for (const std::string& candidate : {path, other}) {
    if (::access(candidate.c_str(), F_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("no data at ", path, " (nor at ", other, "). ", advice));
}

absl::Status CheckLabels(const IdxArray& labels, const std::string& path, int64_t classes) {
  if (labels.dims().size() != 1) {
    return absl::DataLossError(
        absl::StrCat(path, ": labels have ", labels.dims().size(), " dimensions instead of 1"));
  }
  const auto bad = std::find_if(labels.values().begin(), labels.values().end(),
                                [&](uint8_t label) { return label >= classes; });
  LS_RETURN_IF_ERROR(labels.Check());
  if (bad == labels.values().end()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": label ", int{*bad}, " at offset ",
                   labels.header_bytes() + static_cast<size_t>(bad - labels.values().begin()),
                   ", but there are ", classes, " classes"));
}

// One split's files, both there.
struct Files {
  std::string images, labels;
};

absl::StatusOr<Files> FindPair(const std::string& images, const std::string& labels,
                               const std::string& advice) {
  Files files;
  LS_ASSIGN_OR_RETURN(files.images, FindEither(images, advice));
  LS_ASSIGN_OR_RETURN(files.labels, FindEither(labels, advice));
  return files;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenPair(const Files& files,
                                                  std::unique_ptr<IdxArray> labels, int64_t classes,
                                                  double mean, double std, double unit) {
  if (!(std > 0) || !std::isfinite(mean) || !std::isfinite(std)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mean ", mean, " and std ", std, ": std must be positive, both finite"));
  }
  LS_RETURN_IF_ERROR(CheckLabels(*labels, files.labels, classes));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<IdxArray> images, IdxArray::Open(files.images));
  if (images->dims().size() < 2) {
    return absl::DataLossError(absl::StrCat(files.images, ": images need at least 2 dimensions"));
  }
  if (images->dims()[0] != labels->dims()[0]) {
    return absl::DataLossError(absl::StrCat(files.images, " has ", images->dims()[0],
                                            " samples, but ", files.labels, " has ",
                                            labels->dims()[0]));
  }
  return std::make_unique<ImageDataset>(std::move(images), std::move(labels), classes, mean, std,
                                        unit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenFashionMnist(const FashionMnistSource& source,
                                                          Split split) {
  const std::string folder = source.path.empty() ? kFashionMnistFolder : source.path;
  const std::string prefix =
      absl::StrCat(folder, "/", split == Split::kTrain ? "train" : "t10k", "-");
  LS_ASSIGN_OR_RETURN(const Files files,
                      FindPair(absl::StrCat(prefix, "images-idx3-ubyte.gz"),
                               absl::StrCat(prefix, "labels-idx1-ubyte.gz"),
                               "Install it with `apt-get install dataset-fashion-mnist`, or name "
                               "its folder in data.fashion_mnist.path"));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<IdxArray> labels, IdxArray::Open(files.labels));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Dataset> dataset,
                      OpenPair(files, std::move(labels), 10, source.mean, source.std, kPixelUnit));
  if (dataset->fields()[0].shape != std::vector<int64_t>{1, 28, 28}) {
    return absl::DataLossError(absl::StrCat(files.images, ": the images are not 28 x 28"));
  }
  return dataset;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const IdxSource& source, Split split) {
  const bool train = split == Split::kTrain;
  const std::string& images = train ? source.train_images : source.test_images;
  const std::string& labels_file = train ? source.train_labels : source.test_labels;
  if (images.empty() || labels_file.empty()) {
    return absl::NotFoundError(absl::StrCat("data.idx names no ", train ? "train" : "test",
                                            "_images and ", train ? "train" : "test", "_labels"));
  }
  constexpr char kIdxAdvice[] = "Name the files in data.idx";
  LS_ASSIGN_OR_RETURN(const Files files, FindPair(images, labels_file, kIdxAdvice));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<IdxArray> labels, IdxArray::Open(files.labels));
  // The training labels say how many classes there are, for both splits.
  const auto count = [](const IdxArray& array) {
    return int64_t{*std::max_element(array.values().begin(), array.values().end())} + 1;
  };
  int64_t classes = source.classes > 0 ? source.classes : count(*labels);
  LS_RETURN_IF_ERROR(labels->Check());
  if (!train && source.classes == 0 && !source.train_labels.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string file, FindEither(source.train_labels, kIdxAdvice));
    LS_ASSIGN_OR_RETURN(const std::unique_ptr<IdxArray> train_labels, IdxArray::Open(file));
    classes = count(*train_labels);
    LS_RETURN_IF_ERROR(train_labels->Check());
  }
  return OpenPair(files, std::move(labels), classes, source.mean, source.std,
                  source.raw_bytes ? 1.0 : kPixelUnit);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxInputs(const std::string& path,
                                                       const std::vector<double>& mean,
                                                       const std::vector<double>& std,
                                                       bool raw_bytes) {
  LS_ASSIGN_OR_RETURN(const std::string file, FindEither(path, "Inputs are a .npy or an IDX file"));
  LS_ASSIGN_OR_RETURN(std::shared_ptr<IdxArray> images, IdxArray::Open(file));
  if (images->dims().size() < 2) {
    return absl::DataLossError(absl::StrCat(path, ": images need at least 2 dimensions"));
  }
  ArraySamples samples;
  samples.raw_bytes = raw_bytes;
  samples.shape.assign(images->dims().begin() + 1, images->dims().end());
  if (samples.shape.size() == 2) samples.shape.insert(samples.shape.begin(), 1);
  size_t bytes = 1;
  for (const int64_t extent : samples.shape) bytes *= static_cast<size_t>(extent);
  samples.stretches = {{images->values().data(), bytes, images->dims()[0]}};
  samples.labels.assign(static_cast<size_t>(images->dims()[0]), 0);
  samples.classes = 1;
  LS_RETURN_IF_ERROR(SetNormalisation(path, mean, std, samples.shape[0], &samples));
  samples.check = [images = images.get()] { return images->Check(); };
  samples.owner = std::move(images);
  return MakeArrayDataset(std::move(samples));
}

}  // namespace lockstep::data
