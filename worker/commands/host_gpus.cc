// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/host_gpus.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/lock_file.h"

namespace lockstep::worker {
namespace {

// Without blanks at its ends; empty when it cannot be read.
std::string ReadWord(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadText(path)));
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

std::vector<GpuPlace> GpuPlaces(const std::string& sys) {
  std::vector<GpuPlace> places;
  std::error_code error;
  const std::string folder = absl::StrCat(sys, "/bus/pci/drivers/nvidia");
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!Exists(absl::StrCat(path, "/local_cpulist"))) continue;  // not a device
    GpuPlace place;
    place.pci = entry->path().filename().string();
    place.cpus = ReadWord(absl::StrCat(path, "/local_cpulist"));
    if (!absl::SimpleAtoi(ReadWord(absl::StrCat(path, "/numa_node")), &place.numa)) place.numa = -1;
    places.push_back(std::move(place));
  }
  std::sort(places.begin(), places.end(),
            [](const GpuPlace& a, const GpuPlace& b) { return a.pci < b.pci; });
  return places;
}

DirectAccess FindDirectAccess(const std::string& sys, const std::string& proc) {
  DirectAccess found;
  const auto module = [&](const char* name) { return Exists(absl::StrCat(sys, "/module/", name)); };
  const bool open = absl::StrContains(ReadWord(absl::StrCat(proc, "/driver/nvidia/version")),
                                      "Open Kernel Module");
  found.rdma = module("nvidia_peermem") || open;
  found.rdma_text = module("nvidia_peermem") ? "GPUDirect RDMA by nvidia_peermem"
                    : open ? "GPUDirect RDMA by dmabuf (the driver's open kernel modules)"
                           : "no GPUDirect RDMA: load nvidia_peermem, or use the driver's open "
                             "kernel modules (dmabuf)";
  found.storage = module("nvidia_fs");
  found.storage_text = found.storage ? "GPUDirect Storage by nvidia_fs"
                                     : "no GPUDirect Storage: nvidia_fs is not loaded";
  return found;
}

}  // namespace lockstep::worker
