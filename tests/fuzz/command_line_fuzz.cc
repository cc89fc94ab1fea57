// SPDX-License-Identifier: Apache-2.0
// Any words (one a line) are a command or an error that says something.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "launcher/cli/arguments.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: a fuzz target is one function
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> words = absl::StrSplit(text, '\n');
  const auto command =
      launcher::ParseCommandLine(words, [](const std::string&) { return std::string(); });
  if (command.ok()) return 0;
  LS_CHECK(absl::IsInvalidArgument(command.status())) << command.status();
  LS_CHECK(!command.status().message().empty());
  return 0;
}
