// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mapped_bytes.h"
#include "common/philox.h"
#include "common/status.h"
#include "data/token_windows.h"

namespace lockstep::data {
namespace {

// The bytes of several files one after another.
class Text {
 public:
  // A file, or the regular files of a folder and of those in it, by name; links are not followed,
  // so that nothing is read twice.
  static absl::StatusOr<std::unique_ptr<Text>> Open(const std::string& path) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(path));
    auto text = std::make_unique<Text>();
    for (const std::string& name : names) {
      std::error_code error;
      if (std::filesystem::file_size(name, error) == 0 && !error) continue;
      LS_ASSIGN_OR_RETURN(MappedBytes bytes, MappedBytes::OpenFile(name));
      text->ends_.push_back(text->size() + static_cast<int64_t>(bytes.size()));
      text->files_.push_back(std::move(bytes));
    }
    return text;
  }

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // Asked after reading the `count` > 0 bytes from `at` on. `last`, at first -1, is the file that
  // was asked last: windows of one file are asked about once. Errors: as MappedBytes::Check.
  absl::Status Check(int64_t at, int64_t count, int64_t* last) const {
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
    for (auto file = first; file < std::ssize(files_); ++file) {
      const auto place = static_cast<size_t>(file);
      if (file > first && ends_[place - 1] >= at + count) break;
      if (std::exchange(*last, file) == file) continue;
      LS_RETURN_IF_ERROR(files_[place].Check());
    }
    return absl::OkStatus();
  }
  // Bytes [at, at + count) as numbers.
  void Read(int64_t at, int64_t count, int32_t* out) const {
    auto file =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
    while (count > 0) {
      const auto size = static_cast<int64_t>(files_[file].size());
      const int64_t first = at - (ends_[file] - size);
      const int64_t n = std::min(count, size - first);
      const uint8_t* from = files_[file].data() + first;
      for (int64_t i = 0; i < n; ++i) out[i] = from[i];
      out += n;
      at += n;
      count -= n;
      ++file;
    }
  }

 private:
  static absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!fs::exists(path, error)) {
      return absl::NotFoundError(
          absl::StrCat("no text at ", path, ": name a file or a folder in data.text.path"));
    }
    if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
    std::vector<std::string> names;
    fs::recursive_directory_iterator it(path, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (fs::is_regular_file(it->symlink_status(error))) names.push_back(it->path().string());
    }
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("the folder ", path, " cannot be read: ", error.message()));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::vector<MappedBytes> files_;
  std::vector<int64_t> ends_;
};

// Which windows a split has: the last ones are the test split's.
struct Range {
  int64_t first = 0;
  int64_t count = 0;
};

absl::StatusOr<Range> RangeOf(const TextSource& source, Split split, int64_t windows) {
  const auto test = static_cast<int64_t>(static_cast<double>(windows) * source.test_fraction);
  const Range range =
      split == Split::kTrain ? Range{0, windows - test} : Range{windows - test, test};
  if (range.count > 0) return range;
  return absl::DataLossError(absl::StrCat(
      source.path, " has ", windows, " windows of ", source.length,
      " bytes, which leaves none for ", split == Split::kTrain ? "training" : "the test split",
      ": give more text, a smaller data.text.length or another data.text.test_fraction"));
}

class TextDataset : public Dataset {
 public:
  TextDataset(std::unique_ptr<Text> text, Range range, int64_t length)
      : text_(std::move(text)), range_(range), length_(length) {
    const auto type = FieldSpec::Type::kInt32;
    fields_ = {{"tokens", type, {length}, 256}, {kLabelsField, type, {length}, 256}};
  }
  int64_t size() const override { return range_.count; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return 256; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    auto* tokens = static_cast<int32_t*>(fields[0]);
    auto* labels = static_cast<int32_t*>(fields[1]);
    for (const int64_t index : request.indices) {
      LS_CHECK(index >= 0 && index < range_.count) << index;
      const int64_t at = (range_.first + index) * length_;
      text_->Read(at, length_, tokens);
      text_->Read(at + 1, length_, labels);
      tokens += length_;
      labels += length_;
    }
    int64_t last = -1;
    for (const int64_t index : request.indices) {
      LS_RETURN_IF_ERROR(text_->Check((range_.first + index) * length_, length_ + 1, &last));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Text> text_;
  const Range range_;
  const int64_t length_;
  std::vector<FieldSpec> fields_;
};

// [CLS] first half [SEP] second half [SEP], the halves being segments 0 and 1. Of the bytes a share
// is chosen; a chosen one is hidden behind the mask token (80 %), replaced by a random byte (10 %)
// or left (10 %), and is the label there. All other labels are -1. What is chosen is a function of
// (seed, step, shard, place in the shard) in training, else of (seed, place in the test split): an
// evaluation is the same whatever blocks it is read in.
class MaskedTextDataset : public Dataset {
 public:
  MaskedTextDataset(std::unique_ptr<Text> text, Range range, const TextSource& source, Split split)
      : text_(std::move(text)),
        range_(range),
        split_(split),
        length_(source.length),
        key_(SiteKey(source.seed, "data.text.masked")),
        threshold_(static_cast<uint32_t>(source.masked * 0x1.0p32)) {
    const auto type = FieldSpec::Type::kInt32;
    fields_ = {{"tokens", type, {length_}, kMaskedVocabulary},
               {"segments", type, {length_}, 2},
               {kLabelsField, type, {length_}, kMaskedVocabulary}};
  }
  int64_t size() const override { return range_.count; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return kMaskedVocabulary; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    for (size_t i = 0; i < request.indices.size(); ++i) {
      const int64_t index = request.indices[i];
      LS_CHECK(index >= 0 && index < range_.count) << index;
      const int64_t offset = static_cast<int64_t>(i) * length_;
      int32_t* tokens = static_cast<int32_t*>(fields[0]) + offset;
      ReadWindow(index, tokens, static_cast<int32_t*>(fields[1]) + offset);
      int32_t* const labels = static_cast<int32_t*>(fields[2]) + offset;
      if (split_ == Split::kTrain) {
        Hide(request.step, request.shard, offset, tokens, labels);
      } else {
        Hide(0, 0, index * length_, tokens, labels);
      }
    }
    int64_t last = -1;
    for (const int64_t index : request.indices) {
      LS_RETURN_IF_ERROR(text_->Check((range_.first + index) * (length_ - 3), length_ - 3, &last));
    }
    return absl::OkStatus();
  }

 private:
  void ReadWindow(int64_t index, int32_t* tokens, int32_t* segments) const {
    const int64_t bytes = length_ - 3, half = bytes / 2;
    const int64_t at = (range_.first + index) * bytes;
    tokens[0] = kFirstToken;
    text_->Read(at, half, tokens + 1);
    tokens[half + 1] = kSeparator;
    text_->Read(at + half, bytes - half, tokens + half + 2);
    tokens[length_ - 1] = kSeparator;
    for (int64_t t = 0; t < length_; ++t) segments[t] = t > half + 1 ? 1 : 0;
  }

  void Hide(int64_t in_step, int in_shard, int64_t place, int32_t* tokens, int32_t* labels) const {
    const auto step = static_cast<uint64_t>(in_step);
    for (int64_t t = 0; t < length_; ++t) {
      labels[t] = -1;
      if (tokens[t] >= 256) continue;
      const auto element = static_cast<uint64_t>(place + t);
      const auto words =
          Philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
                      static_cast<uint32_t>(step),
                      static_cast<uint32_t>(in_shard) | static_cast<uint32_t>(step >> 32) << 16},
                     key_);
      if (words[0] >= threshold_) continue;
      labels[t] = tokens[t];
      const float choice = UniformFloat(words[1]);
      if (choice < 0.8f) {
        tokens[t] = kMaskToken;
      } else if (choice < 0.9f) {
        tokens[t] = static_cast<int32_t>(words[2] % 256);
      }
    }
  }

  const std::unique_ptr<Text> text_;
  const Range range_;
  const Split split_;
  const int64_t length_;
  const uint64_t key_;
  const uint32_t threshold_;
  std::vector<FieldSpec> fields_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextSource& source, Split split) {
  const bool masked = source.masked > 0;
  if (source.length < (masked ? 5 : 1) || source.length > 1 << 20 ||
      !(source.test_fraction >= 0 && source.test_fraction < 1) ||
      !(source.masked >= 0 && source.masked < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.text: length ", source.length, ", test_fraction ", source.test_fraction, ", masked ",
        source.masked, ": length is from 1 (5 with masked) to 1048576, the shares are in [0, 1)"));
  }
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Text> text, Text::Open(source.path));
  const int64_t windows = masked ? text->size() / (source.length - 3)
                                 : std::max<int64_t>(text->size() - 1, 0) / source.length;
  LS_ASSIGN_OR_RETURN(const Range range, RangeOf(source, split, windows));
  if (masked) return std::make_unique<MaskedTextDataset>(std::move(text), range, source, split);
  return std::make_unique<TextDataset>(std::move(text), range, source.length);
}

}  // namespace lockstep::data
