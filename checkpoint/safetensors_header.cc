// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status.h"

namespace lockstep::checkpoint {
namespace {

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMaxDims = 64;

struct Dtype {
  std::string_view name;
  uint64_t bytes;
};
constexpr Dtype kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                             {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                             {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

// Takes the parser's events without building a document, so that a hostile header costs no more
// memory than its own length and every surplus or repeated key is seen.
class HeaderReader : public nlohmann::json::json_sax_t {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return Fail("null is not expected"); }
  bool boolean(bool) override { return Fail("a truth value is not expected"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Fail("a number that is not whole");
  }
  bool binary(binary_t&) override { return Fail("binary data is not expected"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail("a dimension is too large");
      }
      if (tensor().shape.size() >= kMaxDims) return Fail("more than 64 dimensions");
      tensor().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return Fail("data_offsets has more than 2 numbers");
      (offsets_ == 0 ? tensor().begin : tensor().end) = value;
      ++offsets_;
      return true;
    }
    return Fail("a number is not expected");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header.metadata[key_] = std::move(value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      tensor().dtype = std::move(value);
      return true;
    }
    return Fail("a string is not expected");
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Fail("an object is not expected");
    place_ = key_ == kMetadata ? Place::kMetadata : Place::kTensor;
    if (place_ == Place::kTensor) {
      header.tensors.emplace_back().name = key_;
      seen_.clear();
      offsets_ = 0;
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ == Place::kTop) {
      return names_.insert(key_).second || Fail("the name occurs twice");
    }
    if (place_ == Place::kMetadata) {
      return header.metadata.emplace(key_, "").second || Fail("the metadata key occurs twice");
    }
    if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") return Fail("unknown key");
    return seen_.insert(key_).second || Fail("the key occurs twice");
  }

  bool end_object() override {
    if (place_ == Place::kTensor && (seen_.size() != 3 || offsets_ != 2)) {
      return Fail("dtype, shape and two data_offsets are needed");
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return Fail("a list is not expected");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    if (error.empty()) error = absl::StrCat("not JSON at byte ", position);
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  TensorEntry& tensor() { return header.tensors.back(); }
  bool Fail(absl::string_view what) {
    const bool in_tensor =
        place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    error = in_tensor ? absl::StrCat("tensor '", tensor().name, "', key '", key_, "': ", what)
                      : absl::StrCat("key '", key_, "': ", what);
    return false;
  }

  Place place_ = Place::kOutside;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> seen_;
  int offsets_ = 0;
};

absl::Status CheckRanges(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    const std::string where = absl::StrCat("tensor '", tensor.name, "'");
    if (!bytes.ok()) {
      return absl::DataLossError(absl::StrCat(where, ": ", bytes.status().message()));
    }
    if (tensor.begin != at) {
      return absl::DataLossError(absl::StrCat(where, " begins at ", tensor.begin, ", but the data ",
                                              "before it end at ", at));
    }
    if (tensor.end < tensor.begin || tensor.end > data_bytes) {
      return absl::DataLossError(
          absl::StrCat(where, " ends at ", tensor.end, " of ", data_bytes, " bytes of data"));
    }
    if (tensor.end - tensor.begin != *bytes) {
      return absl::DataLossError(absl::StrCat(where, " has ", tensor.end - tensor.begin,
                                              " bytes, its shape and dtype say ", *bytes));
    }
    at = tensor.end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the tensors end at ", at, ", but there are ", data_bytes, " bytes of data"));
}

// A JSON string, in ASCII where JSON needs escapes only. Empty when `text` is not UTF-8.
std::string Quote(const std::string& text) {
  std::string quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  // The handler drops what is not UTF-8; what was dropped does not read back.
  return nlohmann::json::parse(quoted).get<std::string>() == text ? quoted : std::string();
}

// Bytes of one element, 0 for a dtype that the format does not know.
uint64_t DtypeBytes(std::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<uint64_t> TensorBytes(std::string_view dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = DtypeBytes(dtype);
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", std::string(dtype), "'"));
  }
  for (const int64_t dim : shape) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("dimension ", dim));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return absl::InvalidArgumentError("its size does not fit 64 bits");
    }
  }
  return bytes;
}

absl::StatusOr<std::string> FormatSafetensorsHeader(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto quote = [&text](const std::string& value) {
    const std::string quoted = Quote(value);
    text += quoted;
    return !quoted.empty();
  };
  const auto not_utf8 = [](const std::string& value) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8: '", value, "'"));
  };
  if (!header.metadata.empty()) {
    absl::StrAppend(&text, "\"", kMetadata, "\":{");
    const char* separator = "";
    for (const auto& [key, value] : header.metadata) {
      text += std::exchange(separator, ",");
      if (!quote(key)) return not_utf8(key);
      text += ':';
      if (!quote(value)) return not_utf8(value);
    }
    text += '}';
  }
  for (const TensorEntry& tensor : header.tensors) {
    if (text.size() > 1) text += ',';
    if (!quote(tensor.name)) return not_utf8(tensor.name);
    absl::StrAppend(&text, ":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[");
    const char* separator = "";
    for (const int64_t dim : tensor.shape) {
      absl::StrAppend(&text, std::exchange(separator, ","), dim);
    }
    absl::StrAppend(&text, "],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t data_bytes) {
  // The reference reader looks for the brace too; a file that is also something else is refused.
  if (json.empty() || json[0] != '{')
    return absl::DataLossError("the header does not begin with {");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return absl::DataLossError(absl::StrCat("header: ", reader.error));
  }
  std::stable_sort(reader.header.tensors.begin(), reader.header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  LS_RETURN_IF_ERROR(CheckRanges(reader.header.tensors, data_bytes));
  return std::move(reader.header);
}

}  // namespace lockstep::checkpoint
