// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mapped_bytes.h"
#include "common/philox.h"
#include "common/status.h"
#include "data/idx.h"
#include "data/token_windows.h"

namespace lockstep::data {
namespace {

// llm.c's layout: 256 little-endian int32 (magic, version, number of tokens, zeros), then tokens of
// 16 bits (first pair) or of 32 bits (second pair).
constexpr int64_t kHeaderBytes = 256 * 4;
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801, kVersion32 = 7;
// The largest vocabulary of 16 bits.
constexpr int64_t kVocab16 = 1 << 16;

std::vector<FieldSpec> TokenFields(int64_t length, int64_t vocab) {
  const auto type = FieldSpec::Type::kInt32;
  return {{"tokens", type, {length}, vocab}, {kLabelsField, type, {length}, vocab}};
}

// Files up to this are looked through before they are used; larger ones in so many pieces. The
// whole of them would be seconds to minutes of every worker's start, at 2 to 6 GB/s from memory.
constexpr int64_t kWholeBytes = int64_t{256} << 20;
constexpr int64_t kPieces = 256;

struct TokenFile {
  MappedBytes bytes;
  int64_t offset = 0;  // of the first token
  int64_t width = 2;   // bytes of a token
  int64_t count = 0;
};

// Returns whether every second of the first tokens of 16 bits is 0, as of small whole numbers of 32
// bits, or all but every fourth, of 64.
bool LooksWider(const MappedBytes& bytes) {
  constexpr int64_t kLeast = 64, kMost = 4096;
  const int64_t count = std::min(static_cast<int64_t>(bytes.size()) / 2, kMost);
  if (count < kLeast) return false;
  int64_t others = 0;  // that are not 0
  for (int64_t i = 0; i < count; ++i) {
    uint16_t token;
    std::memcpy(&token, bytes.data() + 2 * i, sizeof(token));
    if (i % 2 == 1 && token != 0) return false;
    others += token != 0 ? 1 : 0;
  }
  return others > count / 16;
}

// Tells the layouts apart by the magic number; without one the file is tokens of 16 bits, and
// cannot be what it should for a vocabulary beyond them.
absl::StatusOr<TokenFile> OpenFile(const std::string& path, int64_t vocab) {
  TokenFile file;
  LS_ASSIGN_OR_RETURN(file.bytes, MappedBytes::OpenFile(path));
  const auto size = static_cast<int64_t>(file.bytes.size());
  int32_t header[3] = {};
  if (size >= kHeaderBytes) std::memcpy(header, file.bytes.data(), sizeof(header));
  const absl::Status packed = RefuseGzip(path, file.bytes.span());
  LS_RETURN_IF_ERROR(file.bytes.Check());
  LS_RETURN_IF_ERROR(packed);
  const bool wide = header[0] == kMagic32;
  if (!wide && header[0] != kMagic16) {
    if (vocab > kVocab16) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " has no header, so its tokens have 16 bits, but data.tokens.vocab is ", vocab,
          ": write 256 int32 before tokens of 32 bits (", kMagic32, ", ", kVersion32,
          ", the number of tokens, zeros), or set vocab to ", kVocab16, " or less"));
    }
    if (size % 2 != 0) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", size, " bytes: tokens without a header take two bytes each"));
    }
    if (LooksWider(file.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          " has no header, so its tokens have 16 bits, and every second one is 0: tokens of 32 or "
          "64 bits look so; write them as uint16, or with the header of tokens of 32 bits"));
    }
    LS_RETURN_IF_ERROR(file.bytes.Check());
    file.count = size / 2;
    return file;
  }
  if (header[1] != (wide ? kVersion32 : kVersion16)) {
    return absl::DataLossError(
        absl::StrCat(path, ": version ", header[1], " at offset 4 is not known"));
  }
  file.width = wide ? 4 : 2;
  file.offset = kHeaderBytes;
  file.count = header[2];
  if (file.count < 0 || kHeaderBytes + file.count * file.width != size) {
    return absl::DataLossError(absl::StrCat(path, " has ", size, " bytes, but its header says ",
                                            header[2], " tokens of ", file.width, " bytes"));
  }
  return file;
}

class FileDataset : public Dataset {
 public:
  FileDataset(TokenFile file, std::string path, int64_t length, int64_t vocab)
      : file_(std::move(file)),
        path_(std::move(path)),
        length_(length),
        vocab_(vocab),
        fields_(TokenFields(length, vocab)) {}
  int64_t size() const override { return (file_.count - 1) / length_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return vocab_; }

  // Looks for tokens beyond the vocabulary: in all windows of a small file, in pieces of a large
  // one that are spread over it. Errors: DataLoss, naming the first that was found; those of
  // MappedBytes::Check.
  absl::Status CheckTokens() const {
    const int64_t used = size() * length_ + 1;
    if (used * file_.width <= kWholeBytes) return CheckTokens(0, used);
    const int64_t piece = kWholeBytes / kPieces / file_.width;
    for (int64_t i = 0; i < kPieces; ++i) {
      // In steps of the file's size, without a product that overflows.
      const int64_t begin = (used - piece) / (kPieces - 1) * i;
      LS_RETURN_IF_ERROR(CheckTokens(begin, begin + piece));
    }
    return CheckTokens(used - piece, used);
  }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    auto* tokens = static_cast<int32_t*>(fields[0]);
    auto* labels = static_cast<int32_t*>(fields[1]);
    for (const int64_t index : request.indices) {
      LS_CHECK(index >= 0 && index < size()) << index;
      for (int64_t t = 0; t <= length_; ++t) {
        const int64_t at = index * length_ + t;
        const uint32_t token = At(at);
        if (token >= static_cast<uint64_t>(vocab_)) return Beyond(at);
        if (t < length_) tokens[t] = static_cast<int32_t>(token);
        if (t > 0) labels[t - 1] = static_cast<int32_t>(token);
      }
      tokens += length_;
      labels += length_;
    }
    return file_.bytes.Check();
  }

 private:
  uint32_t At(int64_t i) const {
    const uint8_t* from = file_.bytes.data() + file_.offset + i * file_.width;
    uint32_t token = 0;
    std::memcpy(&token, from, static_cast<size_t>(file_.width));
    return token;
  }
  // The largest of the tokens [begin, end). The file's tokens lie aligned.
  template <typename Token>
  Token Largest(int64_t begin, int64_t end) const {
    const auto* tokens = reinterpret_cast<const Token*>(file_.bytes.data() + file_.offset);
    Token largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, tokens[i]);
    return largest;
  }
  absl::Status CheckTokens(int64_t begin, int64_t end) const {
    const uint32_t largest =
        file_.width == 2 ? Largest<uint16_t>(begin, end) : Largest<uint32_t>(begin, end);
    if (largest < static_cast<uint64_t>(vocab_)) return file_.bytes.Check();
    while (At(begin) < static_cast<uint64_t>(vocab_) && begin < end - 1) ++begin;
    return Beyond(begin);
  }
  // The error for the token at place `at`.
  absl::Status Beyond(int64_t at) const {
    const uint32_t token = At(at);
    LS_RETURN_IF_ERROR(file_.bytes.Check());
    return absl::DataLossError(absl::StrCat(path_, ": token ", token, " at place ", at,
                                            ", but data.tokens.vocab is ", vocab_));
  }

  const TokenFile file_;
  const std::string path_;
  const int64_t length_;
  const int64_t vocab_;
  const std::vector<FieldSpec> fields_;
};

// Made tokens: each is one of four that its predecessor allows, so that there is something to
// learn, down to a loss of log 4.
class MadeDataset : public Dataset {
 public:
  MadeDataset(const TokensSource& source, Split split)
      : size_(split == Split::kTrain ? source.train_samples : source.test_samples),
        length_(source.length),
        vocab_(source.vocab),
        key_(SiteKey(source.seed,
                     split == Split::kTrain ? "data.tokens.train" : "data.tokens.test")),
        rule_(SiteKey(source.seed, "data.tokens.rule")),
        fields_(TokenFields(length_, vocab_)) {}
  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return vocab_; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    auto* tokens = static_cast<int32_t*>(fields[0]);
    auto* labels = static_cast<int32_t*>(fields[1]);
    for (const int64_t index : request.indices) {
      LS_CHECK(index >= 0 && index < size_) << index;
      const auto address = static_cast<uint64_t>(index);
      uint64_t token = MixBits(key_ ^ MixBits(address)) % static_cast<uint64_t>(vocab_);
      for (int64_t t = 0; t < length_; ++t) {
        tokens[t] = static_cast<int32_t>(token);
        const auto words =
            Philox4x32({static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32),
                        static_cast<uint32_t>(t), 0},
                       key_);
        token = MixBits(rule_ ^ (token * 4 + words[0] % 4)) % static_cast<uint64_t>(vocab_);
        labels[t] = static_cast<int32_t>(token);
      }
      tokens += length_;
      labels += length_;
    }
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const int64_t length_;
  const int64_t vocab_;
  const uint64_t key_;
  const uint64_t rule_;
  const std::vector<FieldSpec> fields_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const TokensSource& source, Split split) {
  if (source.length < 1 || source.length > 1 << 20 || source.vocab < 1 || source.vocab > 1 << 24 ||
      source.train_samples < 1 || source.test_samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokens: length ", source.length, ", vocab ", source.vocab, ", ",
                     source.train_samples, " and ", source.test_samples,
                     " samples: each must be at least 1, length at most 2^20, vocab 2^24"));
  }
  const std::string& path = split == Split::kTrain ? source.train : source.test;
  if (source.train.empty() && source.test.empty()) {
    return std::make_unique<MadeDataset>(source, split);
  }
  if (path.empty()) {
    return absl::NotFoundError(
        absl::StrCat("data.tokens names no ", split == Split::kTrain ? "train" : "test", " file"));
  }
  LS_ASSIGN_OR_RETURN(TokenFile file, OpenFile(path, source.vocab));
  if (file.count <= source.length) {
    return absl::DataLossError(absl::StrCat(path, " has ", file.count,
                                            " tokens, too few for one window of ", source.length,
                                            " and the token after it"));
  }
  auto dataset = std::make_unique<FileDataset>(std::move(file), path, source.length, source.vocab);
  LS_RETURN_IF_ERROR(dataset->CheckTokens());
  return dataset;
}

}  // namespace lockstep::data
