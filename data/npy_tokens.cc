// SPDX-License-Identifier: Apache-2.0
#include "data/npy_tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status.h"
#include "data/npy.h"

namespace lockstep::data {
namespace {

// Whole numbers of a file, as they lie there.
class Numbers {
 public:
  // Errors: as NpyArray::Open; DataLoss for other types.
  static absl::StatusOr<Numbers> Open(const std::string& path) {
    LS_ASSIGN_OR_RETURN(std::unique_ptr<NpyArray> array, NpyArray::Open(path));
    if (array->type() == NpyType::kFloat32 || array->type() == NpyType::kFloat64) {
      return absl::DataLossError(absl::StrCat(path, ": tokens and their labels are ",
                                              "uint8, int32 or int64, not ", Name(array->type())));
    }
    return Numbers(path, std::move(array));
  }

  const std::string& path() const { return path_; }
  const std::vector<int64_t>& shape() const { return array_->shape(); }
  int64_t count() const {
    int64_t count = 1;
    for (const int64_t extent : shape()) count *= extent;
    return count;
  }
  int64_t At(int64_t i) const {
    const uint8_t* at = array_->values() + static_cast<size_t>(i) * SizeOf(array_->type());
    if (array_->type() == NpyType::kUInt8) return *at;
    if (array_->type() == NpyType::kInt32) {
      int32_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    int64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  // Asked after reading numbers. Errors: as MappedBytes::Check.
  absl::Status Check() const { return array_->Check(); }
  // Errors: DataLoss, naming the first number outside [least, limit); those of Check.
  absl::Status CheckRange(int64_t least, int64_t limit) const {
    for (int64_t i = 0, n = count(); i < n; ++i) {
      const int64_t value = At(i);
      if (value >= least && value < limit) continue;
      LS_RETURN_IF_ERROR(Check());
      const int64_t row = n / std::max<int64_t>(shape().empty() ? 1 : shape()[0], 1);
      return absl::DataLossError(
          absl::StrCat(path_, ": sample ", i / row, " has the number ", value, "; it must be ",
                       least < -1 ? absl::StrCat("below ", limit, " (negative: no target)")
                                  : absl::StrCat("in [", least, ", ", limit, ")")));
    }
    return Check();
  }

 private:
  Numbers(std::string path, std::unique_ptr<NpyArray> array)
      : path_(std::move(path)), array_(std::move(array)) {}
  std::string path_;
  std::unique_ptr<NpyArray> array_;
};

class TokenArrays : public Dataset {
 public:
  // `each`: a label for each token. `labels` null: all are 0.
  TokenArrays(Numbers tokens, std::unique_ptr<Numbers> labels, const NpySource& source,
              int64_t classes, bool each)
      : tokens_(std::move(tokens)),
        labels_(std::move(labels)),
        length_(tokens_.shape()[1]),
        padding_(source.padding),
        classes_(classes) {
    const auto type = FieldSpec::Type::kInt32;
    fields_.push_back({"tokens", type, {length_}, source.vocab});
    if (padding_ >= 0) fields_.push_back({"lengths", type, {}, length_ + 1});
    std::vector<int64_t> targets;
    if (each) targets.push_back(length_);
    fields_.push_back({kLabelsField, type, targets, classes});
  }

  int64_t size() const override { return tokens_.shape()[0]; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }

  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    auto* tokens = static_cast<int32_t*>(fields[0]);
    auto* lengths = padding_ >= 0 ? static_cast<int32_t*>(fields[1]) : nullptr;
    auto* labels = static_cast<int32_t*>(fields.back());
    const int64_t targets = fields_.back().elements();
    for (const int64_t index : request.indices) {
      LS_CHECK(index >= 0 && index < size()) << index;
      for (int64_t t = 0; t < length_; ++t) {
        tokens[t] = static_cast<int32_t>(tokens_.At(index * length_ + t));
      }
      if (lengths != nullptr) {
        int64_t length = length_;
        while (length > 1 && tokens[length - 1] == padding_) --length;
        *lengths++ = static_cast<int32_t>(length);
      }
      for (int64_t t = 0; t < targets; ++t) {
        const int64_t label = labels_ == nullptr ? 0 : labels_->At(index * targets + t);
        *labels++ = static_cast<int32_t>(std::max<int64_t>(label, -1));
      }
      tokens += length_;
    }
    LS_RETURN_IF_ERROR(tokens_.Check());
    return labels_ == nullptr ? absl::OkStatus() : labels_->Check();
  }

 private:
  const Numbers tokens_;
  const std::unique_ptr<Numbers> labels_;
  const int64_t length_;
  const int64_t padding_;
  const int64_t classes_;
  std::vector<FieldSpec> fields_;
};

absl::StatusOr<Numbers> TokensOf(const std::string& path, const NpySource& source) {
  LS_ASSIGN_OR_RETURN(Numbers tokens, Numbers::Open(path));
  if (tokens.shape().size() != 2 || tokens.shape()[1] < 1) {
    return absl::DataLossError(absl::StrCat(path, ": tokens have the shape [",
                                            absl::StrJoin(tokens.shape(), ", "),
                                            "]; [samples, length] is needed"));
  }
  if (tokens.shape()[0] < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": there are no samples, or they are empty"));
  }
  LS_RETURN_IF_ERROR(tokens.CheckRange(0, source.vocab));
  return tokens;
}

// Classes of labels [samples]: one more than the largest.
absl::StatusOr<int64_t> ClassesOf(const Numbers& labels) {
  LS_RETURN_IF_ERROR(labels.CheckRange(0, std::numeric_limits<int32_t>::max()));
  int64_t classes = 1;
  for (int64_t i = 0; i < labels.count(); ++i) classes = std::max(classes, labels.At(i) + 1);
  LS_RETURN_IF_ERROR(labels.Check());
  return classes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyTokens(const NpySource& source, Split split) {
  const bool train = split == Split::kTrain;
  LS_ASSIGN_OR_RETURN(Numbers tokens,
                      TokensOf(train ? source.train_inputs : source.test_inputs, source));
  LS_ASSIGN_OR_RETURN(Numbers labels,
                      Numbers::Open(train ? source.train_labels : source.test_labels));
  const bool each = labels.shape().size() == 2;
  if ((each && labels.shape() != tokens.shape()) ||
      (!each && labels.shape() != std::vector<int64_t>{tokens.shape()[0]})) {
    return absl::DataLossError(absl::StrCat(
        labels.path(), ": labels have the shape [", absl::StrJoin(labels.shape(), ", "), "], but ",
        tokens.path(), " has [", absl::StrJoin(tokens.shape(), ", "),
        "]; one label for each sample or one for each token is needed"));
  }
  int64_t classes = source.vocab;
  if (each) {
    LS_RETURN_IF_ERROR(labels.CheckRange(std::numeric_limits<int64_t>::min(), source.vocab));
  } else if (source.classes > 0) {
    classes = source.classes;
    LS_RETURN_IF_ERROR(labels.CheckRange(0, classes));
  } else if (train || source.train_labels.empty()) {
    LS_ASSIGN_OR_RETURN(classes, ClassesOf(labels));
  } else {
    LS_ASSIGN_OR_RETURN(const Numbers trained, Numbers::Open(source.train_labels));
    LS_ASSIGN_OR_RETURN(classes, ClassesOf(trained));
    LS_RETURN_IF_ERROR(labels.CheckRange(0, classes));
  }
  return std::make_unique<TokenArrays>(
      std::move(tokens), std::make_unique<Numbers>(std::move(labels)), source, classes, each);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpyTokenInputs(const std::string& path,
                                                            const NpySource& source, bool each) {
  LS_ASSIGN_OR_RETURN(Numbers tokens, TokensOf(path, source));
  return std::make_unique<TokenArrays>(std::move(tokens), nullptr, source, 1, each);
}

}  // namespace lockstep::data
