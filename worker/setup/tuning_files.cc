// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/tuning_files.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace lockstep::worker {
namespace {

constexpr const char* kFile = "matmul-algorithms.tsv";
constexpr const char* kKernelFile = "cpu-kernels.tsv";

// $XDG_CACHE_HOME, or .cache in the home; empty without either.
std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return absl::StrCat(cache, "/lockstep");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache/lockstep");
  return "";
}

}  // namespace

std::vector<std::string> TuningFiles(const JobSpec& job, const std::string& run_dir) {
  const std::string& wish = job.resources().matmul();
  const bool shared = job.resources().nodes() <= 1;
  if (wish == "library" || (wish != "measured" && !shared)) return {};
  std::vector<std::string> files = {absl::StrCat(run_dir, "/", kFile)};
  const std::string cache = CacheFolder();
  if (!cache.empty()) files.push_back(absl::StrCat(cache, "/", kFile));
  return files;
}

std::string KernelFile() {
  const std::string cache = CacheFolder();
  return cache.empty() ? "" : absl::StrCat(cache, "/", kKernelFile);
}

engine::CudnnUse CudnnUseOf(const JobSpec& job) {
  const std::string& use = job.resources().cudnn();
  if (use == "always") return engine::CudnnUse::kAlways;
  return use == "never" ? engine::CudnnUse::kNever : engine::CudnnUse::kAuto;
}

}  // namespace lockstep::worker
