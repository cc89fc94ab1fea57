// SPDX-License-Identifier: Apache-2.0
// UTF-8: its characters, mending what is none, and the columns that a text takes on a terminal. The
// one place for all programs; what would act on a terminal is common/printable.h's.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_UTF8_H_
#define LOCKSTEP_COMMON_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// What stands for a byte that is part of no character: U+FFFD.
inline constexpr uint32_t kNoCharacter = 0xFFFD;

// The character at the start of `text` (not empty) and its bytes in `*bytes`. A malformed sequence
// (RFC 3629) counts as one byte, with kNoCharacter.
uint32_t DecodeUtf8(std::string_view text, int* bytes);

// C0, DEL and C1.
inline bool IsControl(uint32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

// The offset of the first byte that is not part of a UTF-8 character or is a control character
// other than tab, line feed and carriage return; npos when the text is good.
size_t FindBadText(std::string_view text);

// Characters (code points) in `text`.
int CountCharacters(std::string_view text);

// Columns that a character takes on a terminal: 0 (combining marks), 1, or 2 (East Asian, emoji).
int DisplayWidth(uint32_t character);
// The same for a whole text.
int DisplayWidth(std::string_view text);

// `text` with '?' for every byte that is not part of a UTF-8 character.
std::string ToUtf8(std::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_UTF8_H_
