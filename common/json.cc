// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace lockstep {
namespace {

template <typename Float>
std::string Shortest(Float value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

}  // namespace

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    int bytes = 1;
    const uint32_t c = DecodeUtf8(text.substr(i), &bytes);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (IsControl(c) || (c == kNoCharacter && bytes == 1)) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += text.substr(i, static_cast<size_t>(bytes));
    }
    i += static_cast<size_t>(bytes);
  }
  return out + "\"";
}

std::string JsonNumber(double value) { return Shortest(value); }
std::string JsonNumber(float value) { return Shortest(value); }

JsonObject& JsonObject::Raw(std::string_view name, std::string_view json) {
  if (text_.size() > 1) text_ += ',';
  text_ += JsonString(name);
  text_ += ':';
  text_ += json;
  return *this;
}

JsonArray& JsonArray::Raw(std::string_view json) {
  if (text_.size() > 1) text_ += ',';
  text_ += json;
  return *this;
}

}  // namespace lockstep
