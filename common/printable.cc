// SPDX-License-Identifier: Apache-2.0
#include "common/printable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace lockstep {
namespace {

void AppendEscaped(char c, std::string& out) {
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else {
    absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    int bytes = 1;
    const uint32_t c = DecodeUtf8(text, &bytes);
    const std::string_view character = text.substr(0, static_cast<size_t>(bytes));
    if ((IsControl(c) && c != '\t') || (c == kNoCharacter && bytes == 1)) {
      for (const char byte : character) AppendEscaped(byte, out);
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string PrintableLines(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += Printable(text.substr(begin, end - begin));
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace lockstep
