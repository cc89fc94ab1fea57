// SPDX-License-Identifier: Apache-2.0
#include "data/npy.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 1 << 16;
constexpr size_t kMaxExtents = 8;

struct TypeName {
  NpyType type;
  const char* descr;
  const char* name;
  size_t bytes;
};
constexpr TypeName kTypes[] = {
    {NpyType::kFloat32, "<f4", "float32", 4}, {NpyType::kFloat64, "<f8", "float64", 8},
    {NpyType::kUInt8, "|u1", "uint8", 1},     {NpyType::kInt32, "<i4", "int32", 4},
    {NpyType::kInt64, "<i8", "int64", 8},
};
const TypeName& Row(NpyType type) { return kTypes[static_cast<size_t>(type)]; }

// Reads the dictionary's text: enough of Python's literals for the three keys of the format.
class DictionaryReader {
 public:
  explicit DictionaryReader(std::string_view text) : text_(text) {}

  absl::Status Read(NpyHeader* header) {
    if (!Take('{')) return Wrong("'{'");
    bool descr = false, order = false, shape = false;
    while (!Take('}')) {
      std::string key;
      if (!ReadString(&key) || !Take(':')) return Wrong("a key and ':'");
      absl::Status status;
      if (key == "descr" && !descr) {
        descr = true;
        status = ReadType(header);
      } else if (key == "fortran_order" && !order) {
        order = true;
        status = ReadOrder();
      } else if (key == "shape" && !shape) {
        shape = true;
        status = ReadShape(header);
      } else {
        return absl::DataLossError("the header has an unknown or repeated key");
      }
      LS_RETURN_IF_ERROR(status);
      if (!Take(',') && !Peek('}')) return Wrong("',' or '}'");
    }
    SkipSpace();
    if (at_ != text_.size()) return Wrong("the header's end");
    if (!descr || !order || !shape) {
      return absl::DataLossError("the header lacks descr, fortran_order or shape");
    }
    return absl::OkStatus();
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    }
  }
  bool Peek(char c) {
    SkipSpace();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    ++at_;
    return true;
  }
  absl::Status Wrong(const char* expected) const {
    return absl::DataLossError(
        absl::StrCat("at byte ", at_, " of the header's text: expected ", expected));
  }
  bool ReadString(std::string* out) {
    SkipSpace();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    *out = std::string(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return true;
  }
  std::string_view ReadWord() {
    SkipSpace();
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isalnum(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  absl::Status ReadType(NpyHeader* header) {
    std::string descr;
    if (!ReadString(&descr)) return Wrong("the name of a type");
    for (const TypeName& row : kTypes) {
      const bool byte = row.bytes == 1 && descr.size() == 3 && descr.substr(1) == "u1";
      if (descr != row.descr && !byte) continue;
      header->type = row.type;
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        "values of this type are not read; save them as float32, float64, uint8, int32 or int64 "
        "(labels and tokens as one of the last three), little-endian"));
  }
  absl::Status ReadOrder() {
    const std::string_view word = ReadWord();
    if (word == "False") return absl::OkStatus();
    if (word == "True") {
      return absl::DataLossError(
          "the array is in Fortran order; save numpy.ascontiguousarray of it");
    }
    return Wrong("True or False");
  }
  absl::Status ReadShape(NpyHeader* header) {
    if (!Take('(')) return Wrong("'('");
    size_t elements = 1;
    while (!Take(')')) {
      int64_t extent = 0;
      if (!absl::SimpleAtoi(std::string(ReadWord()), &extent) || extent < 0) {
        return Wrong("an extent");
      }
      if (header->shape.size() == kMaxExtents) return absl::DataLossError("more than 8 extents");
      if (extent > 0 && elements > (size_t{1} << 43) / static_cast<size_t>(extent)) {
        return absl::DataLossError("the shape promises more than 64 TiB");
      }
      elements *= static_cast<size_t>(extent);
      header->shape.push_back(extent);
      if (!Take(',') && !Peek(')')) return Wrong("',' or ')'");
    }
    header->payload_bytes = elements;  // times the element's size, once that is known
    return absl::OkStatus();
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

size_t SizeOf(NpyType type) { return Row(type).bytes; }
const char* Name(NpyType type) { return Row(type).name; }

absl::StatusOr<NpyHeader> ParseNpy(absl::Span<const uint8_t> bytes) {
  const size_t magic = kMagic.size();
  if (bytes.size() < magic + 4 || std::memcmp(bytes.data(), kMagic.data(), magic) != 0) {
    return absl::DataLossError("not a .npy file: it must begin with \\x93NUMPY");
  }
  const int version = bytes[magic];
  if (version < 1 || version > 3) {
    return absl::DataLossError(absl::StrCat("version ", version, " of the format is not read"));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t start = magic + 2 + length_bytes;
  if (bytes.size() < start) return absl::DataLossError("truncated before its header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{bytes[magic + 2 + i]} << (8 * i);
  if (length > kMaxHeader || length > bytes.size() - start) {
    return absl::DataLossError(absl::StrCat("the header's length ", length, " is too large"));
  }
  NpyHeader header;
  LS_RETURN_IF_ERROR(DictionaryReader({reinterpret_cast<const char*>(bytes.data()) + start, length})
                         .Read(&header));
  header.header_bytes = start + length;
  header.payload_bytes *= SizeOf(header.type);
  if (bytes.size() != header.total_bytes()) {
    return absl::DataLossError(
        absl::StrCat("has ", bytes.size(), " bytes, but its header says ", header.total_bytes()));
  }
  return header;
}

std::string FormatNpyHeader(NpyType type, const std::vector<int64_t>& shape) {
  std::string extents;
  for (const int64_t extent : shape) absl::StrAppend(&extents, extent, ", ");
  if (shape.size() > 1) extents.resize(extents.size() - 2);
  if (shape.size() == 1) extents.resize(extents.size() - 1);
  std::string text = absl::StrCat("{'descr': '", Row(type).descr,
                                  "', 'fortran_order': False, 'shape': (", extents, "), }");
  const size_t start = kMagic.size() + 4;
  const size_t total = (start + text.size() + 1 + 63) / 64 * 64;
  text.append(total - start - text.size() - 1, ' ');
  text += '\n';
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xFF);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

absl::StatusOr<std::unique_ptr<NpyArray>> NpyArray::Open(const std::string& path) {
  LS_ASSIGN_OR_RETURN(MappedBytes file, MappedBytes::OpenFile(path));
  absl::StatusOr<NpyHeader> header = ParseNpy(file.span());
  LS_RETURN_IF_ERROR(file.Check());
  if (!header.ok()) return Annotate(header.status(), path);
  return std::unique_ptr<NpyArray>(new NpyArray(*std::move(header), std::move(file)));
}

}  // namespace lockstep::data
