// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/cuda_libraries.h"
#include "common/cuda_version.h"
#include "common/status.h"

namespace lockstep::engine::cuda {
namespace {

constexpr const char* kFile = "liblockstep_cuda.so";
constexpr Code kOutOfMemory = 2;    // cudaErrorMemoryAllocation
constexpr Code kDriverTooOld = 35;  // cudaErrorInsufficientDriver

std::atomic<const Tables*> given{nullptr};

// The folder of the running program.
std::string ProgramFolder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string whole(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
  const size_t slash = whole.rfind('/');
  return slash == std::string::npos ? "." : whole.substr(0, slash);
}

absl::StatusOr<const Tables*> Open() {
  std::string tried;
  for (const std::string& path : ModulePaths()) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* error = ::dlerror();
      absl::StrAppend(&tried, tried.empty() ? "" : "; ", error == nullptr ? path : error);
      continue;
    }
    auto* symbol = reinterpret_cast<const Tables* (*)()>(::dlsym(handle, kTablesSymbol));
    const Tables* tables = symbol == nullptr ? nullptr : symbol();
    if (tables != nullptr && tables->version == kTablesVersion) return tables;
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of another build than this program: install both together"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no CUDA module: this build has none, or it cannot be loaded (", tried,
                   "): build with nvcc and the preset cuda, or use device: cpu"));
}

}  // namespace

std::vector<std::string> ModulePaths() {
  if (const char* own = std::getenv("LOCKSTEP_CUDA_MODULE")) return {own};
  const std::string folder = ProgramFolder();
  // Beside programs, where packages may put it, and as tests see it in a folder of a build.
  return {absl::StrCat(folder, "/", kFile), absl::StrCat(folder, "/../lib/", kFile),
          absl::StrCat(folder, "/../bin/", kFile)};
}

absl::StatusOr<const Tables*> LoadModule() {
  if (const Tables* tables = given.load()) return tables;
  static const absl::StatusOr<const Tables*>* const opened =
      new absl::StatusOr<const Tables*>(Open());  // lives for ever
  return *opened;
}

absl::Status LoadMatmul(const Tables& tables) {
  // A wheel's folder has the version in its name: nvidia/cu13.
  const absl::string_view file = tables.matmul->file;
  const std::string wheel = absl::StrCat("cu", file.substr(file.rfind('.') + 1));
  const std::vector<std::string> paths =
      CudaLibraryPaths("LOCKSTEP_CUBLASLT_LIBRARY", tables.matmul->file, wheel);
  std::vector<const char*> names;
  names.reserve(paths.size());
  for (const std::string& path : paths) names.push_back(path.c_str());
  const std::string missing = tables.matmul->load(names.data(), static_cast<int>(names.size()));
  return missing.empty() ? absl::OkStatus() : absl::FailedPreconditionError(missing);
}

void UseTables(const Tables* tables) { given.store(tables); }

bool IsEmulated(const Tables& tables) {
  return absl::string_view(tables.name) == "an emulated GPU";
}

absl::Status StatusOf(const Tables& tables, Code code, const std::string& what) {
  if (code == 0) return absl::OkStatus();
  if (code >= kCudnnErrors) {
    return absl::InternalError(absl::StrCat(what, ": cuDNN gives error ", code - kCudnnErrors));
  }
  if (code >= kMatmulErrors) {
    return absl::InternalError(absl::StrCat(what, ": cuBLASLt gives error ", code - kMatmulErrors));
  }
  const std::string text = absl::StrCat(what, ": ", tables.runtime->error_text(code));
  if (code == kOutOfMemory) {
    size_t free_bytes = 0, total_bytes = 0;
    tables.runtime->memory(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; ", free_bytes, " of the GPU's ", total_bytes,
                     " bytes are free (nvidia-smi lists who holds the rest)"));
  }
  return absl::InternalError(absl::StrCat(text, " (CUDA error ", code, ")"));
}

absl::StatusOr<std::vector<DeviceProperties>> ListDevices() {
  LS_ASSIGN_OR_RETURN(const Tables* tables, LoadModule());
  int count = 0;
  const Code code = tables->runtime->device_count(&count);
  if (code != 0) {
    std::string remedy;
    if (code == kDriverTooOld) {
      remedy = absl::StrCat(" (CUDA ", kCudaMajor, " needs driver ", kLeastCudaDriver,
                            " or newer: update it, or use device: cpu)");
    }
    return absl::FailedPreconditionError(
        absl::StrCat("no GPU can be used: ", tables->runtime->error_text(code), remedy));
  }
  if (count == 0) return absl::FailedPreconditionError("this host has no GPU");
  std::vector<DeviceProperties> devices(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    LS_RETURN_IF_ERROR(StatusOf(
        *tables, tables->runtime->properties(i, &devices[static_cast<size_t>(i)]), "a GPU"));
  }
  return devices;
}

bool HasWarpgroups(const Tables& tables, const DeviceProperties& properties) {
  const char* const said = std::getenv("LOCKSTEP_WARPGROUPS");
  if (said != nullptr && absl::string_view(said) == "0") return false;
  return tables.warpgroups && properties.compute_major == 9 && properties.compute_minor == 0;
}

std::string DescribeProperties(const Tables& tables, const DeviceProperties& properties) {
  return absl::StrFormat(
      "%s (sm_%d%d, %d multiprocessors, %.1f GiB), CUDA %d.%d, %s", properties.name,
      properties.compute_major, properties.compute_minor, properties.multiprocessors,
      static_cast<double>(properties.total_bytes) / (1 << 30), properties.runtime_version / 1000,
      properties.runtime_version / 10 % 100, tables.matmul->version());
}

}  // namespace lockstep::engine::cuda
