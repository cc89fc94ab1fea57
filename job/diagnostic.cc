// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "job/job_file.h"

namespace lockstep::job {
namespace {

// The source line as it can be printed, and the line below it with a caret under `column` (from 1,
// characters). Tabs are repeated below, so that the caret stands right whatever their width.
void Underline(const std::string& source, int column, int width, std::string* shown,
               std::string* below) {
  int character = 1;
  for (size_t i = 0; i < source.size(); ++character) {
    int bytes = 1;
    const uint32_t c = DecodeUtf8(std::string_view(source).substr(i), &bytes);
    const std::string piece = Printable(source.substr(i, bytes));
    const int columns = c == '\t' ? 1 : DisplayWidth(std::string_view(piece));
    absl::StrAppend(shown, piece);
    if (character < column) {
      below->append(c == '\t' ? "\t" : std::string(columns, ' '));
    } else if (character < column + width) {
      below->append(std::max(1, columns), character == column ? '^' : '~');
      // The caret itself is one sign wide.
      if (character == column)
        std::fill(below->end() - std::max(1, columns) + 1, below->end(), '~');
    }
    i += bytes;
  }
  if (column >= character) below->append(column - character, ' ').append("^");
}

}  // namespace

std::string Diagnostic::Format() const {
  std::string out = Printable(file);
  if (line > 0) absl::StrAppend(&out, ":", line, ":", column);
  absl::StrAppend(&out, ": error: ", message, "\n");
  if (source_line.empty() || column <= 0) return out;
  std::string shown, below;
  Underline(source_line, column, width, &shown, &below);
  const std::string number = line > 0 ? absl::StrCat(line) : "";
  absl::StrAppendFormat(&out, "%5s | %s\n%5s | %s\n", number, shown, "", below);
  return out;
}

std::string LoadResult::FormatErrors() const {
  std::string out;
  for (const Diagnostic& error : errors) out += error.Format();
  return out;
}

}  // namespace lockstep::job
