// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
#include "common/mapped_bytes.h"
#include "common/philox.h"
#include "common/status.h"
#include "data/folder_files.h"
#include "data/idx.h"
#include "data/token_windows.h"

namespace lockstep::data {
namespace {

// Files of so many bytes are mapped, and of the others so many of the largest: all workers of a
// host share their pages. The rest, which each worker has of its own, is read into memory, since a
// process may have 65,530 mappings (vm.max_map_count), and opens both splits.
constexpr int64_t kMappedBytes = int64_t{1} << 20;
constexpr size_t kMappedFiles = 24000;

// The bytes of several files one after another.
class Text {
 public:
  // A file, or those of a folder (FilesOfFolder). Their lengths alone are looked at.
  static absl::StatusOr<std::unique_ptr<Text>> Find(const std::string& path) {
    LS_ASSIGN_OR_RETURN(std::vector<std::string> names, FilesOf(path));
    auto text = std::make_unique<Text>();
    for (std::string& name : names) {
      struct stat info;
      if (::stat(name.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", name));
      if (!S_ISREG(info.st_mode)) {
        return absl::FailedPreconditionError(absl::StrCat(name, " is not a regular file"));
      }
      if (info.st_size == 0) continue;
      text->ends_.push_back(text->size() + info.st_size);
      text->files_.push_back({.path = std::move(name), .size = info.st_size});
    }
    return text;
  }

  // Opens the files that bytes [begin, end) are of; no others may be read. Called once. Errors:
  // those of MappedBytes; DataLoss when a file has another length than when it was found, or is
  // packed.
  absl::Status Open(int64_t begin, int64_t end) {
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    const auto last = std::lower_bound(ends_.begin(), ends_.end(), end) - ends_.begin();
    const absl::Span<File> opened(files_.data() + first, static_cast<size_t>(last - first + 1));
    const std::vector<bool> is_mapped = Mapped();
    size_t bytes = 0;
    for (const File& file : opened) {
      if (!is_mapped[PlaceOf(file)]) bytes += static_cast<size_t>(file.size);
    }
    if (bytes > 0) {
      absl::StatusOr<MappedBytes> memory = MappedBytes::Anonymous(bytes);
      if (!memory.ok()) return Annotate(memory.status(), opened.front().path);
      memory_ = *std::move(memory);
    }
    absl::Span<uint8_t> room = memory_.writable();
    for (File& file : opened) {
      if (is_mapped[PlaceOf(file)]) {
        LS_ASSIGN_OR_RETURN(file.mapped, MappedBytes::OpenFile(file.path));
        LS_RETURN_IF_ERROR(CheckSize(file, static_cast<int64_t>(file.mapped.size())));
        file.data = file.mapped.data();
      } else {
        LS_RETURN_IF_ERROR(Read(file, room.data()));
        file.data = room.data();
        room.remove_prefix(static_cast<size_t>(file.size));
      }
      const absl::Status packed =
          RefuseGzip(file.path, {file.data, static_cast<size_t>(std::min<int64_t>(file.size, 4))});
      LS_RETURN_IF_ERROR(file.mapped.Check());
      LS_RETURN_IF_ERROR(packed);
    }
    return absl::OkStatus();
  }

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // Of the files that were read.
  size_t own_bytes() const { return memory_.size(); }
  // Asked after reading the `count` > 0 bytes from `at` on. `last`, at first -1, is the file that
  // was asked last: windows of one file are asked about once. Errors: as MappedBytes::Check.
  absl::Status Check(int64_t at, int64_t count, int64_t* last) const {
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
    for (auto file = first; file < std::ssize(files_); ++file) {
      const auto place = static_cast<size_t>(file);
      if (file > first && ends_[place - 1] >= at + count) break;
      if (std::exchange(*last, file) == file) continue;
      LS_RETURN_IF_ERROR(files_[place].mapped.Check());
    }
    return absl::OkStatus();
  }
  // Bytes [at, at + count) as numbers.
  void Read(int64_t at, int64_t count, int32_t* out) const {
    auto file =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
    while (count > 0) {
      const int64_t size = files_[file].size;
      const int64_t first = at - (ends_[file] - size);
      const int64_t n = std::min(count, size - first);
      const uint8_t* from = files_[file].data + first;
      for (int64_t i = 0; i < n; ++i) out[i] = from[i];
      out += n;
      at += n;
      count -= n;
      ++file;
    }
  }

 private:
  struct File {
    std::string path;
    int64_t size = 0;
    const uint8_t* data = nullptr;  // null: not opened
    MappedBytes mapped = {};        // empty where it was read
  };

  size_t PlaceOf(const File& file) const { return static_cast<size_t>(&file - files_.data()); }

  // By place: whether the file is mapped.
  std::vector<bool> Mapped() const {
    std::vector<size_t> places(files_.size());
    std::iota(places.begin(), places.end(), size_t{0});
    const size_t most = std::min(kMappedFiles, places.size());
    std::nth_element(places.begin(), places.begin() + static_cast<int64_t>(most), places.end(),
                     [&](size_t a, size_t b) {
                       return std::pair(-files_[a].size, a) < std::pair(-files_[b].size, b);
                     });
    std::vector<bool> mapped(files_.size());
    for (size_t i = 0; i < places.size(); ++i) {
      mapped[places[i]] = i < most || files_[places[i]].size >= kMappedBytes;
    }
    return mapped;
  }
  static absl::Status CheckSize(const File& file, int64_t size) {
    if (size == file.size) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(file.path, " was changed while it was opened: it has ",
                                            size, " bytes, it had ", file.size));
  }
  // Reads all of the file.
  static absl::Status Read(const File& file, uint8_t* out) {
    // O_NONBLOCK: as MappedBytes::OpenFile.
    UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", file.path));
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", file.path));
    LS_RETURN_IF_ERROR(CheckSize(file, info.st_size));
    for (int64_t at = 0; at < file.size;) {
      const ssize_t n = ::read(fd.get(), out + at, static_cast<size_t>(file.size - at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", file.path));
      if (n == 0) return CheckSize(file, at);
      at += n;
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!fs::exists(path, error)) {
      return absl::NotFoundError(
          absl::StrCat("no text at ", path, ": name a file or a folder in data.text.path"));
    }
    if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
    return FilesOfFolder(path);
  }

  std::vector<File> files_;
  std::vector<int64_t> ends_;
  MappedBytes memory_;  // of the files that are not mapped
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
  size_t own_bytes() const override { return text_->own_bytes(); }

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
  size_t own_bytes() const override { return text_->own_bytes(); }

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
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Text> text, Text::Find(source.path));
  const int64_t stride = masked ? source.length - 3 : source.length;
  const int64_t after = masked ? 0 : 1;  // the last label
  const int64_t windows = std::max<int64_t>(text->size() - after, 0) / stride;
  LS_ASSIGN_OR_RETURN(const Range range, RangeOf(source, split, windows));
  LS_RETURN_IF_ERROR(
      text->Open(range.first * stride, (range.first + range.count) * stride + after));
  if (masked) return std::make_unique<MaskedTextDataset>(std::move(text), range, source, split);
  return std::make_unique<TextDataset>(std::move(text), range, source.length);
}

}  // namespace lockstep::data
