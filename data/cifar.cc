// SPDX-License-Identifier: Apache-2.0
#include "data/cifar.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mapped_bytes.h"
#include "common/status.h"
#include "data/array_dataset.h"

namespace lockstep::data {
namespace {

constexpr int kTrainingFiles = 5;

std::vector<std::string> FilesOf(const std::string& folder, Split split) {
  if (split == Split::kTest) return {folder + "/test_batch.bin"};
  std::vector<std::string> files;
  for (int i = 1; i <= kTrainingFiles; ++i) {
    files.push_back(absl::StrCat(folder, "/data_batch_", i, ".bin"));
  }
  return files;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseCifar(absl::Span<const uint8_t> bytes) {
  if (bytes.empty() || bytes.size() % kCifarRecord != 0) {
    return absl::DataLossError(absl::StrCat("has ", bytes.size(),
                                            " bytes, which is no multiple of ", kCifarRecord,
                                            ", the size of a record"));
  }
  std::vector<int32_t> labels;
  labels.reserve(bytes.size() / kCifarRecord);
  for (size_t at = 0; at < bytes.size(); at += kCifarRecord) {
    if (bytes[at] > 9) {
      return absl::DataLossError(
          absl::StrCat("label ", int{bytes[at]}, " at offset ", at, "; the classes are 0 to 9"));
    }
    labels.push_back(bytes[at]);
  }
  return labels;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Source& source, Split split) {
  ArraySamples samples;
  samples.shape = {3, 32, 32};
  samples.classes = 10;
  auto files = std::make_shared<std::vector<MappedBytes>>();
  for (const std::string& path : FilesOf(source.path, split)) {
    if (::access(path.c_str(), F_OK) != 0) {
      return absl::NotFoundError(
          absl::StrCat("no data at ", path,
                       ". Unpack CIFAR-10's binary version (cifar-10-binary.tar.gz) and name its "
                       "folder in data.cifar10.path"));
    }
    LS_ASSIGN_OR_RETURN(MappedBytes file, MappedBytes::OpenFile(path));
    const absl::StatusOr<std::vector<int32_t>> labels = ParseCifar(file.span());
    LS_RETURN_IF_ERROR(file.Check());
    if (!labels.ok()) return Annotate(labels.status(), path);
    samples.labels.insert(samples.labels.end(), labels->begin(), labels->end());
    samples.stretches.push_back(
        {file.data() + 1, kCifarRecord, static_cast<int64_t>(labels->size())});
    files->push_back(std::move(file));
  }
  samples.check = [files = files.get()] {
    for (const MappedBytes& file : *files) LS_RETURN_IF_ERROR(file.Check());
    return absl::OkStatus();
  };
  samples.owner = std::move(files);
  LS_RETURN_IF_ERROR(SetNormalisation("data.cifar10",
                                      source.mean.empty() ? Cifar10Mean() : source.mean,
                                      source.std.empty() ? Cifar10Std() : source.std, 3, &samples));
  return MakeArrayDataset(std::move(samples));
}

}  // namespace lockstep::data
