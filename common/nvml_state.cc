// SPDX-License-Identifier: Apache-2.0
// Where GPUs are, whether they are well, and how they reach each other.
#include <array>

#include "absl/strings/str_format.h"
#include "common/nvml.h"

namespace lockstep {
namespace {

// What of nvml.h is used here.
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
constexpr unsigned kCorrected = 0, kUncorrected = 1;
constexpr unsigned kSinceDriverLoad = 0;
constexpr unsigned kMostLinks = 18;
constexpr unsigned kRead = 0, kWrite = 1, kByNvLink = 2;  // capabilities of a pair
constexpr size_t kMaskWords = 64;
constexpr int kBitsOfWord = 8 * sizeof(unsigned long);

int64_t Errors(int result, unsigned long long count) {
  return result == 0 ? static_cast<int64_t>(count) : 0;
}

}  // namespace

std::string Nvml::PciAddress(const Device& device) const {
  NvmlPci pci{};
  using Get = int (*)(void*, NvmlPci*);
  if (Call<Get>("nvmlDeviceGetPciInfo_v3", device.whole, &pci) != 0) return "";
  return absl::StrFormat("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
}

CpuList Nvml::NearCpus(const Device& device) const {
  std::array<unsigned long, kMaskWords> mask{};
  using Get = int (*)(void*, unsigned, unsigned long*);
  if (Call<Get>("nvmlDeviceGetCpuAffinity", device.whole, static_cast<unsigned>(mask.size()),
                mask.data()) != 0) {
    return {};
  }
  CpuList cpus;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (int bit = 0; bit < kBitsOfWord; ++bit) {
      if ((mask[word] >> bit) & 1) cpus.push_back(static_cast<int>(word) * kBitsOfWord + bit);
    }
  }
  return cpus;
}

std::optional<Nvml::Ecc> Nvml::EccOf(const Device& device) const {
  void* const gpu = device.whole;
  unsigned current = 0, pending = 0;
  using Mode = int (*)(void*, unsigned*, unsigned*);
  if (Call<Mode>("nvmlDeviceGetEccMode", gpu, &current, &pending) != 0) return std::nullopt;
  Ecc ecc;
  ecc.on = current != 0;
  const auto count = [&](unsigned kind) {
    unsigned long long errors = 0;
    using Get = int (*)(void*, unsigned, unsigned, unsigned long long*);
    const int result =
        Call<Get>("nvmlDeviceGetTotalEccErrors", gpu, kind, kSinceDriverLoad, &errors);
    return Errors(result, errors);
  };
  ecc.corrected = count(kCorrected);
  ecc.uncorrected = count(kUncorrected);
  unsigned remapped_corrected = 0, remapped_uncorrected = 0, waits = 0, failed = 0;
  using Rows = int (*)(void*, unsigned*, unsigned*, unsigned*, unsigned*);
  if (Call<Rows>("nvmlDeviceGetRemappedRows", gpu, &remapped_corrected, &remapped_uncorrected,
                 &waits, &failed) == 0) {
    ecc.remap_pending = waits != 0;
    ecc.remap_failed = failed != 0;
  }
  return ecc;
}

Nvml::Links Nvml::NvLinks(const Device& device) const {
  Links links;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    const auto state = NumberOf("nvmlDeviceGetNvLinkState", device.whole, link);
    if (!state.has_value()) break;
    ++links.all;
    if (*state == 0) continue;
    ++links.active;
    links.version =
        static_cast<int>(NumberOf("nvmlDeviceGetNvLinkVersion", device.whole, link).value_or(0));
  }
  return links;
}

Nvml::Pair Nvml::PairOf(const Device& a, const Device& b) const {
  Pair pair;
  unsigned level = 0;
  using Ancestor = int (*)(void*, void*, unsigned*);
  if (Call<Ancestor>("nvmlDeviceGetTopologyCommonAncestor", a.whole, b.whole, &level) == 0) {
    // The library counts 0, 10, ... 50.
    const unsigned step = level / 10 + static_cast<unsigned>(Nearness::kOneBoard);
    if (step <= static_cast<unsigned>(Nearness::kSystem)) {
      pair.nearness = static_cast<Nearness>(step);
    }
  }
  const auto can = [&](unsigned capability) {
    unsigned status = 1;
    using Get = int (*)(void*, void*, unsigned, unsigned*);
    return Call<Get>("nvmlDeviceGetP2PStatus", a.whole, b.whole, capability, &status) == 0 &&
           status == 0;
  };
  pair.peer = can(kRead) && can(kWrite);
  pair.nvlink = pair.peer && can(kByNvLink);
  return pair;
}

}  // namespace lockstep
