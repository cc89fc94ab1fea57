// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/cpu/numerics.h"
#include "engine/engine.h"

namespace lockstep::engine {
namespace {

// The value of `key` in the first block of /proc/cpuinfo; "?" when it is not there.
std::string CpuInfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.empty()) {
    if (!absl::StartsWith(line, key)) continue;
    const size_t colon = line.find(':');
    const size_t end = line.find_last_not_of(" \t", colon == std::string::npos ? colon : colon - 1);
    if (colon == std::string::npos || end + 1 != key.size()) continue;
    return colon + 2 <= line.size() ? line.substr(colon + 2) : "";
  }
  return "?";
}

}  // namespace

std::string DescribeDevice(const std::string& kernels, int threads) {
  return absl::StrCat(CpuInfo("model name"), " (family ", CpuInfo("cpu family"), " model ",
                      CpuInfo("model"), " stepping ", CpuInfo("stepping"), ", L1d ",
                      sysconf(_SC_LEVEL1_DCACHE_SIZE) / 1024, " KiB, L2 ",
                      sysconf(_SC_LEVEL2_CACHE_SIZE) / 1024, " KiB), ", kernels, ", ", threads,
                      threads == 1 ? " thread" : " threads", ", gcc ", __VERSION__);
}

void PinNumerics(int threads) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name(*entry, strcspn(*entry, "="));
    for (const char* prefix :
         {"DNNL_", "ONEDNN_", "OMP_", "MKL_", "CUBLASLT_", "CUDNN_", "NVIDIA_TF32_OVERRIDE"}) {
      if (absl::StartsWith(name, prefix)) names.push_back(name);
    }
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  // For libraries that bring OpenMP along; our own kernels take their count from the plan.
  setenv("OMP_NUM_THREADS", absl::StrCat(threads).c_str(), 1);
  setenv("OMP_DYNAMIC", "false", 1);
  FlushDenormals();
}

}  // namespace lockstep::engine
