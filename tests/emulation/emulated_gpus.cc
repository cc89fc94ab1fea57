// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/emulated_gpus.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace emulation {
namespace {

std::vector<std::string> Split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return parts;
}

// The GPU that an entry of CUDA_VISIBLE_DEVICES means; the number of `gpus`: none.
size_t Find(const std::vector<std::string>& gpus, const std::string& entry) {
  const bool number = !entry.empty() && std::all_of(entry.begin(), entry.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
  if (number) return std::min<size_t>(std::strtoul(entry.c_str(), nullptr, 10), gpus.size());
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const std::string& gpu) {
    return !entry.empty() && gpu.compare(0, entry.size(), entry) == 0;
  });
  return static_cast<size_t>(found - gpus.begin());
}

}  // namespace

std::vector<std::string> ShownGpus(const char* all, const char* order, const char* visible) {
  if (all == nullptr) return {""};
  std::vector<std::string> gpus = Split(all);
  if (order != nullptr && std::string_view(order) == "PCI_BUS_ID") {
    std::sort(gpus.begin(), gpus.end());
  }
  if (visible == nullptr) return gpus;
  std::vector<std::string> shown;
  for (const std::string& entry : Split(visible)) {
    const size_t gpu = Find(gpus, entry);
    if (gpu == gpus.size()) break;
    shown.push_back(gpus[gpu]);
  }
  return shown;
}

const std::vector<std::string>& Gpus() {
  static const auto* const gpus = new std::vector<std::string>(
      ShownGpus(std::getenv("LOCKSTEP_EMULATED_GPUS"), std::getenv("CUDA_DEVICE_ORDER"),
                std::getenv("CUDA_VISIBLE_DEVICES")));  // lives for ever
  return *gpus;
}

std::array<char, 16> UuidOf(const std::string& name) {
  std::array<char, 16> bytes{};
  std::string digits;
  for (const char c : name.substr(std::min<size_t>(name.size(), 4))) {  // behind "GPU-"
    if (c != '-') digits += c;
  }
  for (size_t i = 0; i < bytes.size() && 2 * i + 1 < digits.size(); ++i) {
    bytes[i] = static_cast<char>(std::strtoul(digits.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

}  // namespace emulation
