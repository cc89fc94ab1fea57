// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/numa.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/lock_file.h"

namespace lockstep::launcher {
namespace {

CpuList CpusOf(absl::string_view text) {
  const absl::StatusOr<CpuList> cpus = ParseCpuList(std::string(absl::StripAsciiWhitespace(text)));
  return cpus.ok() ? *cpus : CpuList{};
}

CpuList Common(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// Of a line "Node 0 MemTotal:       65843160 kB", in bytes; 0 without one.
int64_t TotalIn(absl::string_view meminfo) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() >= 4 && words[2] == "MemTotal:" && absl::SimpleAtoi(words[3], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

}  // namespace

std::vector<NumaNode> NumaNodes(const std::string& sys, const CpuList& usable,
                                absl::Span<const Gpu> gpus) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(absl::StrCat(sys, "/devices/system/node"), error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view number = name;
    NumaNode node;
    int32_t id = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &id)) continue;
    const CpuList all = CpusOf(ReadText(entry->path() / "cpulist"));
    const CpuList here = Common(all, usable);
    if (here.empty()) continue;
    node.set_id(id);
    node.set_cpus(CpuListText(here));
    node.set_memory(TotalIn(ReadText(entry->path() / "meminfo")));
    for (const Gpu& gpu : gpus) {
      if (!Common(all, CpusOf(gpu.cpus)).empty()) node.add_gpus(gpu.uuid);
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id() < b.id(); });
  return nodes;
}

}  // namespace lockstep::launcher
