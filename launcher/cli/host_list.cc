// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/host_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace lockstep::launcher {
namespace {

// A name that begins with '-' would be an option of ssh.
bool IsHostName(absl::string_view name) {
  return !name.empty() && name[0] != '-' && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(".-_@:%", c);
  });
}

absl::Status SetSlots(absl::string_view text, HostSlots* host) {
  if (absl::SimpleAtoi(text, &host->slots) && host->slots >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no number of workers for host ", host->host));
}

absl::StatusOr<HostSlots> ParseHost(absl::string_view text) {
  HostSlots host;
  absl::string_view name = text, slots;
  const bool bracketed = absl::StartsWith(text, "[");
  const size_t end = text.find(bracketed ? ']' : ':');
  // Two colons without brackets are an IPv6 address.
  const bool address = !bracketed && end != text.npos && text.find(':', end + 1) != text.npos;
  if (bracketed && end != text.npos) {
    name = text.substr(1, end - 1);
    slots = text.substr(end + 1);
  } else if (!address && end != text.npos) {
    name = text.substr(0, end);
    slots = text.substr(end);
  }
  host.host = std::string(name);
  if (!IsHostName(name) || (!slots.empty() && !absl::ConsumePrefix(&slots, ":"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no host: expected NAME or NAME:WORKERS"));
  }
  if (!slots.empty() || absl::EndsWith(text, ":")) LS_RETURN_IF_ERROR(SetSlots(slots, &host));
  return host;
}

absl::Status Add(HostSlots host, std::vector<HostSlots>* hosts) {
  const bool twice = std::any_of(hosts->begin(), hosts->end(),
                                 [&](const HostSlots& other) { return other.host == host.host; });
  if (twice) return absl::InvalidArgumentError(absl::StrCat("host ", host.host, " is named twice"));
  hosts->push_back(std::move(host));
  return absl::OkStatus();
}

absl::StatusOr<HostSlots> ParseLine(const std::vector<absl::string_view>& words) {
  LS_ASSIGN_OR_RETURN(HostSlots host, ParseHost(words[0]));
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (!absl::ConsumePrefix(&word, "slots=")) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", words[i], "' is not understood: a line is a host and slots=N"));
    }
    LS_RETURN_IF_ERROR(SetSlots(word, &host));
  }
  return host;
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHostList(const std::string& text) {
  std::vector<HostSlots> hosts;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<HostSlots> host = ParseHost(absl::StripAsciiWhitespace(part));
    LS_RETURN_IF_ERROR(Annotate(host.status(), "--hosts"));
    LS_RETURN_IF_ERROR(Annotate(Add(*std::move(host), &hosts), "--hosts"));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& text,
                                                     const std::string& file) {
  std::vector<HostSlots> hosts;
  int number = 0;
  absl::string_view lines = text;
  absl::ConsumePrefix(&lines, "\xEF\xBB\xBF");  // a byte order mark
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++number;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::StatusOr<HostSlots> host = ParseLine(words);
    const std::string where = absl::StrCat(file, ":", number);
    LS_RETURN_IF_ERROR(Annotate(host.status(), where));
    LS_RETURN_IF_ERROR(Annotate(Add(*std::move(host), &hosts), where));
  }
  if (hosts.empty()) return absl::InvalidArgumentError(absl::StrCat(file, " names no host"));
  return hosts;
}

}  // namespace lockstep::launcher
