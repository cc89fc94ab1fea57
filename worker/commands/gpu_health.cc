// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/gpu_health.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cpu_list.h"
#include "worker/commands/host_gpus.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

using engine::GpuFinding;
using State = GpuFinding::State;

std::string NameOf(const Nvml::Device& gpu) { return absl::StrCat("GPU ", gpu.number); }

GpuFinding Place(const Nvml& nvml, const Nvml::Device& gpu, const std::vector<GpuPlace>& places) {
  const std::string pci = nvml.PciAddress(gpu);
  CpuList near = nvml.NearCpus(gpu);
  int numa = -1;
  for (const GpuPlace& place : places) {
    if (place.pci != pci) continue;
    numa = place.numa;
    if (!near.empty()) continue;
    const absl::StatusOr<CpuList> cpus = ParseCpuList(place.cpus);
    if (cpus.ok()) near = *cpus;
  }
  std::string text = NameOf(gpu);
  if (!pci.empty()) absl::StrAppend(&text, " at ", pci);
  if (numa >= 0) absl::StrAppend(&text, ", NUMA node ", numa);
  if (near.empty()) return {State::kGood, "place", text};
  absl::StrAppend(&text, ", near CPUs ", CpuListText(near));
  const absl::StatusOr<CpuList> allowed = CpusOfThread();
  const bool reachable = !allowed.ok() || std::any_of(near.begin(), near.end(), [&](int cpu) {
    return std::binary_search(allowed->begin(), allowed->end(), cpu);
  });
  if (reachable) return {State::kGood, "place", text};
  return {State::kDoubtful, "place",
          absl::StrCat(text, ", none of which this process may use (it has ", CpuListText(*allowed),
                       "): copies go through another socket's memory")};
}

GpuFinding MemoryErrors(const Nvml& nvml, const Nvml::Device& gpu) {
  const std::string name = NameOf(gpu);
  const std::optional<Nvml::Ecc> ecc = nvml.EccOf(gpu);
  if (!ecc.has_value()) return {State::kOptional, "ECC", absl::StrCat(name, " has none")};
  if (!ecc->on) {
    return {State::kDoubtful, "ECC",
            absl::StrCat(name,
                         " has it switched off: a flipped bit would change the weights; "
                         "nvidia-smi -e 1 switches it on at the next reset")};
  }
  const std::string counts = absl::StrCat(name, ": ", ecc->corrected, " errors corrected, ",
                                          ecc->uncorrected, " not, since the driver was loaded");
  if (ecc->remap_failed) {
    return {State::kDoubtful, "ECC",
            absl::StrCat(counts, "; broken rows could not be replaced: have the GPU exchanged")};
  }
  if (ecc->uncorrected > 0 || ecc->remap_pending) {
    return {State::kDoubtful, "ECC",
            absl::StrCat(counts, ecc->remap_pending ? "; rows are to be replaced" : "",
                         ": reset the GPU before training on it")};
  }
  return {State::kGood, "ECC", counts};
}

void AddLinks(const Nvml& nvml, const Nvml::Device& gpu, std::vector<GpuFinding>* findings) {
  const Nvml::Links links = nvml.NvLinks(gpu);
  if (links.all == 0) return;
  std::string text = absl::StrCat(NameOf(gpu), ": ", links.active, " of ", links.all, " links");
  if (links.version > 0) absl::StrAppend(&text, ", version ", links.version);
  const bool some_down = links.active > 0 && links.active < links.all;
  if (some_down) absl::StrAppend(&text, ": see nvidia-smi nvlink -s and -e");
  findings->push_back({some_down ? State::kDoubtful : State::kGood, "NVLink", std::move(text)});
}

// Of a GPU and its instances.
GpuFinding Users(const Nvml& nvml, const std::vector<Nvml::Device>& devices, int number,
                 const std::string& proc) {
  std::vector<std::string> users;
  for (const Nvml::Device& device : devices) {
    if (device.number != number) continue;
    for (const auto& [pid, bytes] : nvml.Processes(device)) {
      std::ifstream file(absl::StrCat(proc, "/", pid, "/comm"));
      std::string name;
      std::getline(file, name);
      users.push_back(
          absl::StrCat(pid, name.empty() ? "" : absl::StrCat(" (", name, ")"),
                       bytes > 0 ? absl::StrCat(" ", BytesText(static_cast<double>(bytes))) : ""));
    }
  }
  return {State::kGood, "processes",
          absl::StrCat("GPU ", number, ": ", users.empty() ? "none" : absl::StrJoin(users, ", "))};
}

std::string Word(Nvml::Nearness nearness) {
  switch (nearness) {
    case Nvml::Nearness::kOneBoard:
      return "on one board";
    case Nvml::Nearness::kOneSwitch:
      return "behind one PCIe switch";
    case Nvml::Nearness::kSwitches:
      return "behind PCIe switches";
    case Nvml::Nearness::kHostBridge:
      return "on one host bridge";
    case Nvml::Nearness::kNode:
      return "in one NUMA node";
    case Nvml::Nearness::kSystem:
      return "across NUMA nodes";
    case Nvml::Nearness::kUnknown:
      break;
  }
  return "";
}

std::string TextOf(const Nvml::Pair& pair) {
  if (pair.nvlink) return "NVLink";
  const std::string where = Word(pair.nearness);
  return absl::StrCat(pair.peer ? "peer access" : "no peer access (copies go through the host)",
                      where.empty() ? "" : ", ", where);
}

// One row of the matrix: the others, those that are reached alike together.
GpuFinding Peers(const Nvml& nvml, const std::vector<Nvml::Device>& gpus, size_t row) {
  std::vector<std::pair<std::string, CpuList>> ways;  // numbers of GPUs, written as CPUs are
  bool all = true;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (i == row) continue;
    const Nvml::Pair pair = nvml.PairOf(gpus[row], gpus[i]);
    all = all && pair.peer;
    const std::string text = TextOf(pair);
    const auto known =
        std::find_if(ways.begin(), ways.end(), [&](const auto& way) { return way.first == text; });
    if (known == ways.end()) {
      ways.push_back({text, {gpus[i].number}});
    } else {
      known->second.push_back(gpus[i].number);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [text, numbers] : ways) {
    parts.push_back(absl::StrCat("to ", CpuListText(numbers), ": ", text));
  }
  return {all ? State::kGood : State::kOptional, "peers",
          absl::StrCat(NameOf(gpus[row]), " ", absl::StrJoin(parts, "; "))};
}

}  // namespace

std::vector<GpuFinding> ExamineByDriver(const Nvml& nvml, const std::string& sys,
                                        const std::string& proc) {
  std::vector<Nvml::Unlisted> unlisted;
  const absl::StatusOr<std::vector<Nvml::Device>> devices = nvml.Devices(&unlisted);
  if (!devices.ok()) {
    return {{State::kMissing, "driver", std::string(devices.status().message())}};
  }
  std::vector<Nvml::Device> gpus;  // whole ones, each once
  for (const Nvml::Device& device : *devices) {
    if (gpus.empty() || gpus.back().number != device.number) gpus.push_back(device);
  }
  const std::vector<GpuPlace> places = GpuPlaces(sys);
  std::vector<GpuFinding> findings;
  for (const Nvml::Unlisted& gpu : unlisted) {
    findings.push_back({State::kDoubtful, gpu.error == 0 ? "MIG" : "driver", UnlistedText(gpu)});
  }
  for (size_t i = 0; i < gpus.size(); ++i) {
    findings.push_back(Place(nvml, gpus[i], places));
    findings.push_back(MemoryErrors(nvml, gpus[i]));
    AddLinks(nvml, gpus[i], &findings);
    findings.push_back(Users(nvml, *devices, gpus[i].number, proc));
    if (gpus.size() > 1) findings.push_back(Peers(nvml, gpus, i));
  }
  return findings;
}

}  // namespace lockstep::worker
