// SPDX-License-Identifier: Apache-2.0
#include "common/utf8.h"

namespace lockstep {
uint32_t DecodeUtf8(std::string_view text, int* bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  *bytes = 1;
  const uint32_t first = byte(0);
  if (first < 0x80) return first;
  const int length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < static_cast<size_t>(length)) {
    return kNoCharacter;
  }
  uint32_t character = first & (0xFFu >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kNoCharacter;
    character = character << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && character < 0x800) || (length == 4 && character < 0x10000);
  const bool surrogate = character >= 0xD800 && character < 0xE000;
  if (overlong || surrogate || character > 0x10FFFF) return kNoCharacter;
  *bytes = length;
  return character;
}

size_t FindBadText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    int bytes = 1;
    const uint32_t c = DecodeUtf8(text.substr(i), &bytes);
    if (c == kNoCharacter && bytes == 1) return i;
    if (IsControl(c) && c != '\t' && c != '\n' && c != '\r') return i;
    i += bytes;
  }
  return std::string_view::npos;
}

int CountCharacters(std::string_view text) {
  int count = 0;
  for (size_t i = 0; i < text.size(); ++count) {
    int bytes = 1;
    DecodeUtf8(text.substr(i), &bytes);
    i += bytes;
  }
  return count;
}

int DisplayWidth(uint32_t c) {
  const auto in = [c](uint32_t low, uint32_t high) { return c >= low && c <= high; };
  // Combining marks, joiners and variation selectors; then the wide blocks of Unicode's
  // EastAsianWidth.
  if (in(0x300, 0x36F) || in(0x200B, 0x200F) || in(0xFE00, 0xFE0F) || c == 0xFEFF) return 0;
  if (in(0x1100, 0x115F) || in(0x2E80, 0xA4CF) || in(0xAC00, 0xD7A3) || in(0xF900, 0xFAFF) ||
      in(0xFE30, 0xFE6F) || in(0xFF00, 0xFF60) || in(0xFFE0, 0xFFE6) || in(0x1F300, 0x1FAFF) ||
      in(0x20000, 0x3FFFD)) {
    return 2;
  }
  return 1;
}

int DisplayWidth(std::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size();) {
    int bytes = 1;
    width += DisplayWidth(DecodeUtf8(text.substr(i), &bytes));
    i += static_cast<size_t>(bytes);
  }
  return width;
}

std::string ToUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    int bytes = 1;
    const uint32_t c = DecodeUtf8(text.substr(i), &bytes);
    if (c == kNoCharacter && bytes == 1) {
      out += '?';
    } else {
      out += text.substr(i, static_cast<size_t>(bytes));
    }
    i += static_cast<size_t>(bytes);
  }
  return out;
}

}  // namespace lockstep
