// SPDX-License-Identifier: Apache-2.0
// Text of others, made safe to show: no byte of it commands a terminal or begins a line of its own,
// and all of it is UTF-8, as the strings of protobuf have to be.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_PRINTABLE_H_
#define LOCKSTEP_COMMON_PRINTABLE_H_

#include <string>
#include <string_view>

namespace lockstep {

// `text` with control characters (C0 but for the tab, DEL, and C1 in UTF-8) and bytes that are not
// UTF-8 as "\n", "\r" or "\x1b". Printable text, whatever its language, stays as it is.
std::string Printable(std::string_view text);

// The same, line by line: its line feeds stay.
std::string PrintableLines(std::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_PRINTABLE_H_
