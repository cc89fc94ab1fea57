// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/parse.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "launcher/cli/verb_table.h"

namespace lockstep::launcher {

absl::Status Usage(const std::string& message) { return absl::InvalidArgumentError(message); }

bool IsIn(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<int> ParseCount(const std::string& flag, const std::string& text, int least) {
  int count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < least) {
    return Usage(
        absl::StrCat("--", flag, " ", text, ": expected a whole number of at least ", least));
  }
  return count;
}

absl::StatusOr<std::optional<int>> ParseOptionalCount(const Words& words, const std::string& flag,
                                                      int least) {
  if (!words.Has(flag)) return std::optional<int>();
  LS_ASSIGN_OR_RETURN(const int count, ParseCount(flag, words.Last(flag), least));
  return std::optional<int>(count);
}

absl::Status NoCommand(const Line& line) {
  if (!line.words.has_command) return absl::OkStatus();
  return Usage(absl::StrCat("'launcher ", line.verb, "' takes no command after '--'"));
}

absl::Status NoArgument(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  if (line.words.positional.empty()) return absl::OkStatus();
  return Usage(absl::StrCat("'launcher ", line.verb, "' takes no argument '",
                            line.words.positional[0], "'"));
}

bool IsHostAndPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 && text.find('/') == std::string::npos &&
         !IsBareIpv6(text) && absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 1 &&
         port <= 65535;
}

bool IsBareIpv6(absl::string_view text) {
  return text.find(':') != text.rfind(':') && !absl::StartsWith(text, "[") &&
         text.find('/') == text.npos;
}

std::string WrongHostAndPort(absl::string_view text, absl::string_view expected) {
  return absl::StrCat(
      expected, IsBareIpv6(text) ? "; an IPv6 address stands in brackets, as [::1]:7070" : "");
}

absl::StatusOr<std::string> OnePositional(const Line& line, const std::string& what) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  const std::vector<std::string>& given = line.words.positional;
  if (given.size() == 1) return given[0];
  const bool late = !given.empty() && line.verb == "run" && FindVerb(given[0]) != nullptr;
  return Usage(absl::StrCat(
      "'launcher ", line.verb, "' takes one ", what, ", ",
      given.empty() ? "none is given" : absl::StrCat("given are: ", absl::StrJoin(given, " ")),
      late ? absl::StrCat("; a verb comes first: launcher ", given[0], " [flags] ...") : ""));
}

absl::Status ParseDevice(const Words& words, int* threads, std::string* device) {
  if (words.Has("threads")) {
    LS_ASSIGN_OR_RETURN(*threads, ParseCount("threads", words.Last("threads"), 1));
  }
  if (!words.Has("device")) return absl::OkStatus();
  *device = words.Last("device");
  int number = 0;
  const bool numbered = absl::StartsWith(*device, "cuda:") &&
                        absl::SimpleAtoi(device->substr(5), &number) && number >= 0;
  if (*device == "cpu" || *device == "cuda" || numbered) return absl::OkStatus();
  return Usage(absl::StrCat("--device ", *device, ": expected cpu, cuda or cuda:N"));
}

}  // namespace lockstep::launcher
