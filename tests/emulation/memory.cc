// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's memory and what the driver says of it.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "common/check.h"
#include "tests/emulation/emulated_gpus.h"
#include "tests/emulation/emulation.h"
#include "tests/emulation/include/cuda_runtime.h"

namespace emulation {
namespace {

struct Device {
  std::map<void*, size_t> allocations;
  size_t allocated = 0;
  int64_t allocation_calls = 0;
  size_t total = size_t{64} << 30;
  const char* name = "an emulated GPU";
  bool chosen = false;
};
Device gpu;

// Loaders' threads ask for it too, while others lock more: `mutex` is held.
struct LockedMemory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> ranges;  // where, and bytes
  size_t registered = 0;               // of it, what was locked after it was allocated

  // Bytes of [begin, begin + bytes) that one range holds; the most.
  size_t Holds(uintptr_t begin, size_t bytes) const {
    const uintptr_t end = begin + bytes;
    auto it = ranges.upper_bound(begin);
    if (it != ranges.begin()) --it;
    size_t most = 0;
    for (; it != ranges.end() && it->first < end; ++it) {
      const uintptr_t from = std::max(begin, it->first);
      const uintptr_t to = std::min<uintptr_t>(end, it->first + it->second);
      if (from < to) most = std::max<size_t>(most, to - from);
    }
    return most;
  }
};
LockedMemory& locked() {
  static auto& memory = *new LockedMemory();
  return memory;
}

}  // namespace

size_t AllocatedBytes() { return gpu.allocated; }
int64_t Allocations() { return gpu.allocation_calls; }
void SetTotalBytes(size_t bytes) { gpu.total = bytes; }
void SetDeviceName(const char* name) { gpu.name = name; }
bool DeviceIsChosen() { return gpu.chosen; }

size_t RegisteredBytes() {
  const std::lock_guard lock(locked().mutex);
  return locked().registered;
}
size_t LockedBytes(uintptr_t begin, size_t bytes) {
  const std::lock_guard lock(locked().mutex);
  return locked().Holds(begin, bytes);
}
bool CanCopy(const void* pointer, size_t bytes) {
  const size_t locked = LockedBytes(reinterpret_cast<uintptr_t>(pointer), bytes);
  return locked == 0 || locked == bytes;
}

}  // namespace emulation

using emulation::gpu;
using emulation::locked;

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  if (error == cudaErrorLaunchFailure) return "unspecified launch failure (emulated)";
  return error == cudaSuccess ? "no error" : "an emulated error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(emulation::Gpus().size());
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof(*properties));
  const std::array<char, 16> uuid =
      emulation::UuidOf(emulation::Gpus()[static_cast<size_t>(device)]);
  std::copy(uuid.begin(), uuid.end(), properties->uuid.bytes);
  std::strncpy(properties->name, gpu.name, sizeof(properties->name) - 1);
  properties->major = 9;
  properties->multiProcessorCount = 1;
  properties->totalGlobalMem = gpu.total;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || static_cast<size_t>(device) >= emulation::Gpus().size()) {
    return cudaErrorInvalidValue;
  }
  gpu.chosen = true;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = gpu.total - gpu.allocated;
  *total_bytes = gpu.total;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (gpu.allocated + bytes > gpu.total) return cudaErrorMemoryAllocation;
  // Of exactly these bytes, so that sanitizers see what is beyond them.
  LS_CHECK_EQ(::posix_memalign(pointer, 256, bytes), 0);
  std::memset(*pointer, 0x7f, bytes);  // fresh device memory is not zero
  gpu.allocations[*pointer] = bytes;
  ++gpu.allocation_calls;
  gpu.allocated += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const auto it = gpu.allocations.find(pointer);
  LS_CHECK(it != gpu.allocations.end()) << "freed what was not allocated";
  gpu.allocated -= it->second;
  gpu.allocations.erase(it);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  ++gpu.allocation_calls;
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const std::lock_guard lock(locked().mutex);
  locked().ranges[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard lock(locked().mutex);
  LS_CHECK_EQ(locked().ranges.erase(reinterpret_cast<uintptr_t>(pointer)), 1u);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(locked().mutex);
  if (locked().Holds(begin, bytes) > 0) return cudaErrorHostMemoryAlreadyRegistered;
  locked().ranges[begin] = bytes;
  locked().registered += bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  const std::lock_guard lock(locked().mutex);
  const auto at = locked().ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (at == locked().ranges.end()) return cudaErrorHostMemoryNotRegistered;
  locked().registered -= at->second;
  locked().ranges.erase(at);
  return cudaSuccess;
}
