// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/agent_words.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kLongestName = 255;  // as of the id that an agent reads from its file
constexpr int kMostLabels = 256;
constexpr size_t kLongestProblem = 4096;
constexpr int kMostSlots = 65536;

// The text is not repeated, as it may be very long.
std::string TooLong(absl::string_view what, size_t bytes) {
  if (bytes <= kLongestName) return "";
  return absl::StrCat("the agent's ", what, " has ", bytes, " bytes, and may have ", kLongestName);
}

}  // namespace

std::string WhyMalformed(const AgentHello& hello) {
  if (hello.node_id().empty()) return "the agent has no node_id";
  if (std::string why = TooLong("node_id", hello.node_id().size()); !why.empty()) return why;
  if (std::string why = TooLong("host", hello.host().size()); !why.empty()) return why;
  if (std::string why = TooLong("incarnation", hello.incarnation().size()); !why.empty()) {
    return why;
  }
  if (hello.slots() < 0 || hello.slots() > kMostSlots) {
    return absl::StrCat("the agent has ", hello.slots(), " slots, and may have 0 to ", kMostSlots);
  }
  if (hello.cores() < 0) return absl::StrCat("the agent has ", hello.cores(), " cores");
  if (hello.memory() < 0) {
    return absl::StrCat("the agent has ", hello.memory(), " bytes of memory");
  }
  if (hello.labels_size() > kMostLabels) {
    return absl::StrCat("the agent has ", hello.labels_size(), " labels, and may have ",
                        kMostLabels);
  }
  for (const auto& [key, value] : hello.labels()) {
    if (std::string why = TooLong("label", key.size()); !why.empty()) return why;
    if (std::string why = TooLong(absl::StrCat("label ", key), value.size()); !why.empty()) {
      return why;
    }
  }
  return "";
}

std::string ClippedProblem(const std::string& problem) {
  if (problem.size() <= kLongestProblem) return problem;
  size_t end = kLongestProblem;
  while (end > 0 && (static_cast<unsigned char>(problem[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(absl::string_view(problem).substr(0, end), "... (clipped: ", problem.size(),
                      " bytes)");
}

}  // namespace lockstep::coordinator
