// SPDX-License-Identifier: Apache-2.0
// UTF-8 text as a terminal shows it: how many characters and columns a piece takes.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_UTF8_H_
#define LOCKSTEP_JOB_UTF8_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep::job {

// The character at the start of `text` (not empty) and its bytes in `*bytes`. A malformed sequence
// counts as one byte, with U+FFFD.
uint32_t DecodeUtf8(absl::string_view text, int* bytes);

// The offset of the first byte that is not part of a UTF-8 character or is a control character
// other than tab, line feed and carriage return; npos when the text is good.
size_t FindBadText(absl::string_view text);

// Characters (code points) in `text`.
int CountCharacters(absl::string_view text);

// Columns that a character takes on a terminal: 0 (combining marks), 1, or 2 (East Asian, emoji).
int DisplayWidth(uint32_t character);

// `text` with control characters replaced, so that it can do no harm on a terminal.
std::string Printable(absl::string_view text);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_UTF8_H_
