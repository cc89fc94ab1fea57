// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/check.h"
#include "tests/emulation/emulated_gpus.h"
#include "tests/emulation/include/cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" void LockstepSwitchStack(void** save, void* to);
// Saves the registers that a call preserves, and goes on with another stack.
asm(R"(
.text
.globl LockstepSwitchStack
.type LockstepSwitchStack, @function
LockstepSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size LockstepSwitchStack, .-LockstepSwitchStack
)");

namespace emulation {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMaxThreads = 1024;
constexpr int kLanes = 32;

struct Warp {
  alignas(16) char slots[2][kLanes * kSharedBytes];
  int arrived = 0;
  int64_t generation = 0;
};

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  void* stack_pointer = nullptr;
  uint3 index{};
  bool done = false;
  int parity = 0;
  // Runs again when the counter is no longer what it waits for it to leave.
  const int64_t* waits_on = nullptr;
  int64_t waits_for = 0;
  // By group; the last one is not committed yet.
  std::vector<std::vector<PendingCopy>> copies;
  bool published = true;  // nothing was copied since
  bool begins_products = false;
  std::vector<std::function<void()>> begun, products;  // not committed, and committed
};

struct Machine {
  char* stacks = nullptr;
  alignas(1024) char shared[kDynamicBytes];
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  int count = 0;
  int done = 0;
  int arrived = 0;
  int64_t generation = 0;
  Thread* current = nullptr;
  void* scheduler = nullptr;
  const std::function<void()>* body = nullptr;
  Order order = Order::kForward;
  int64_t launches = 0;
  int64_t group_products = 0;
  std::map<const void*, size_t> allowed_shared;  // by kernel
  std::map<void*, size_t> allocations;
  size_t allocated = 0;
  int64_t allocation_calls = 0;
  size_t total = size_t{64} << 30;
  size_t shared_bytes = 228 << 10;
  size_t most_asked = 0;
  const char* name = "an emulated GPU";
  bool chosen = false;
};
Machine machine;

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

void Yield() { LockstepSwitchStack(&machine.current->stack_pointer, machine.scheduler); }

void WaitFor(const int64_t* counter) {
  machine.current->waits_on = counter;
  machine.current->waits_for = *counter;
  Yield();
}

void RunThread() {
  (*machine.body)();
  LS_CHECK(machine.current->copies.empty()) << "a thread ends before its copies";
  LS_CHECK(machine.current->begun.empty() && machine.current->products.empty())
      << "a thread ends before its products";
  machine.current->done = true;
  ++machine.done;
}

// Does not return, so a frame that AddressSanitizer watches would stay poisoned under the next
// thread's.
__attribute__((no_sanitize("address"))) void ThreadMain() {
  RunThread();
  Yield();
  __builtin_unreachable();
}

void Start(int number, dim3 block) {
  Thread& thread = machine.threads[static_cast<size_t>(number)];
  thread = {};
  const auto n = static_cast<unsigned>(number);
  thread.index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
  char* top = machine.stacks + (static_cast<size_t>(number) + 1) * kStackBytes;
  void (*entry)() = ThreadMain;
  std::memcpy(top - 16, &entry, sizeof(entry));
  thread.stack_pointer = top - 16 - 6 * 8;
}

bool Resume(Thread& thread) {
  if (thread.done) return false;
  if (thread.waits_on != nullptr && *thread.waits_on == thread.waits_for) return false;
  thread.waits_on = nullptr;
  machine.current = &thread;
  threadIdx = thread.index;
  LockstepSwitchStack(&machine.scheduler, thread.stack_pointer);
  return true;
}

void RunBlock(dim3 block, size_t shared) {
  machine.done = machine.arrived = 0;
  std::memset(machine.shared, 0x7f, shared);  // it is not zero at the start
  for (int t = 0; t < machine.count; ++t) Start(t, block);
  for (Warp& warp : machine.warps) warp.arrived = 0;
  while (machine.done < machine.count) {
    bool moved = false;
    for (int t = 0; t < machine.count; ++t) {
      const int number = machine.order == Order::kForward ? t : machine.count - 1 - t;
      moved |= Resume(machine.threads[static_cast<size_t>(number)]);
    }
    LS_CHECK(moved) << "threads of a block wait at a barrier that the others never reach";
  }
}

}  // namespace

void SetOrder(Order order) { machine.order = order; }
size_t AllocatedBytes() { return machine.allocated; }
int64_t Allocations() { return machine.allocation_calls; }
void SetSharedBytes(size_t bytes) {
  machine.shared_bytes = bytes;
  machine.most_asked = 0;
}
size_t SharedBytesAsked() { return machine.most_asked; }
void SetTotalBytes(size_t bytes) { machine.total = bytes; }
void SetDeviceName(const char* name) { machine.name = name; }
bool DeviceIsChosen() { return machine.chosen; }
int64_t Launches() { return machine.launches; }
int64_t GroupProducts() { return machine.group_products; }

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

int Lane() { return static_cast<int>((machine.current - machine.threads.data()) % kLanes); }

const void* ShareBytes(const void* bytes, size_t count) {
  LS_CHECK_EQ(machine.count % kLanes, 0) << "a warp that is not full exchanges values";
  Thread& self = *machine.current;
  const auto number = static_cast<size_t>(&self - machine.threads.data());
  Warp& warp = machine.warps[number / kLanes];
  const int parity = self.parity;
  self.parity ^= 1;
  std::memcpy(warp.slots[parity] + number % kLanes * count, bytes, count);
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    ++warp.generation;
  } else {
    WaitFor(&warp.generation);
  }
  return warp.slots[parity];
}

uint64_t Exchange(uint64_t value, int source) { return Share(value)[source]; }

void* SharedMemory() { return machine.shared; }

bool IsAligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

namespace {
void Make(const PendingCopy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, copy.bytes);
  } else {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}
}  // namespace

// As late as may be, or at once: both happen.
void CopyLater(void* to, const void* from, size_t bytes) {
  LS_CHECK(IsAligned(to, bytes) && IsAligned(from, bytes)) << "a copy from or to an odd place";
  auto& groups = machine.current->copies;
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from, bytes});
  if (machine.order == Order::kBackward) Make(groups.back().back());
}
void CommitCopies() {
  auto& groups = machine.current->copies;
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
void WaitForCopies(int pending) {
  auto& groups = machine.current->copies;
  // The open group at the end is not counted.
  while (static_cast<int>(groups.size()) > pending + 1) {
    if (machine.order == Order::kForward) {
      for (const PendingCopy& copy : groups.front()) Make(copy);
    }
    if (!groups.front().empty()) machine.current->published = false;
    groups.erase(groups.begin());
  }
  if (groups.size() == 1 && groups.front().empty()) groups.clear();
}

void PublishShared() { machine.current->published = true; }
void BeginProducts() { machine.current->begins_products = true; }
// Late where copies are early, so that what is copied too soon over a factor shows, and at once
// where they are late, so that a factor that is not waited for does.
void ProductLater(std::function<void()> product) {
  LS_CHECK(machine.current->begins_products) << "products without BeginProducts";
  for (int t = 0; t < machine.count; ++t) {
    LS_CHECK(machine.threads[static_cast<size_t>(t)].published)
        << "a thread has not published what it copied before a product reads it";
  }
  ++machine.group_products;
  if (machine.order == Order::kForward) return product();
  machine.current->begun.push_back(std::move(product));
}
void CommitProducts() {
  machine.current->begins_products = false;
  auto& begun = machine.current->begun;
  auto& products = machine.current->products;
  products.insert(products.end(), begun.begin(), begun.end());
  begun.clear();
}
void WaitForProducts() {
  // A product waits for the warp's other lanes, and this thread may not lose its place meanwhile.
  const auto products = std::exchange(machine.current->products, {});
  for (const auto& product : products) product();
}

cudaError_t AllowShared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kDynamicBytes) return cudaErrorInvalidValue;
  machine.allowed_shared[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

cudaError_t CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const auto within = [](unsigned extent, unsigned most) { return extent > 0 && extent <= most; };
  if (!within(grid.x, 0x7fffffff) || !within(grid.y, 65535) || !within(grid.z, 65535) ||
      !within(block.x, 1024) || !within(block.y, 1024) || !within(block.z, 64) ||
      uint64_t{block.x} * block.y * block.z > kMaxThreads) {
    return cudaErrorInvalidConfiguration;
  }
  constexpr size_t kUnasked = 48 << 10;
  const auto allowed = machine.allowed_shared.find(kernel);
  const size_t most =
      std::max(kUnasked, allowed == machine.allowed_shared.end() ? 0 : allowed->second);
  return config.dynamicSmemBytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

void RunGrid(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread) {
  machine.most_asked = std::max(machine.most_asked, shared);
  if (machine.stacks == nullptr) {
    void* memory = ::mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LS_CHECK(memory != MAP_FAILED);
    machine.stacks = static_cast<char*>(memory);
    machine.threads.resize(kMaxThreads);
    machine.warps.resize(kMaxThreads / kLanes);
  }
  ++machine.launches;
  machine.count = static_cast<int>(block.x * block.y * block.z);
  machine.body = &thread;
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        RunBlock(block, shared);
      }
    }
  }
}

}  // namespace emulation

using emulation::locked;
using emulation::machine;

void __syncthreads() {
  if (++machine.arrived == machine.count) {
    machine.arrived = 0;
    ++machine.generation;
    return;
  }
  emulation::WaitFor(&machine.generation);
}

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
  std::strncpy(properties->name, machine.name, sizeof(properties->name) - 1);
  properties->major = 9;
  properties->multiProcessorCount = 1;
  properties->totalGlobalMem = machine.total;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(machine.shared_bytes);
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
  machine.chosen = true;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = machine.total - machine.allocated;
  *total_bytes = machine.total;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (machine.allocated + bytes > machine.total) return cudaErrorMemoryAllocation;
  // Of exactly these bytes, so that sanitizers see what is beyond them.
  LS_CHECK_EQ(::posix_memalign(pointer, 256, bytes), 0);
  std::memset(*pointer, 0x7f, bytes);  // fresh device memory is not zero
  machine.allocations[*pointer] = bytes;
  ++machine.allocation_calls;
  machine.allocated += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const auto it = machine.allocations.find(pointer);
  LS_CHECK(it != machine.allocations.end()) << "freed what was not allocated";
  machine.allocated -= it->second;
  machine.allocations.erase(it);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  ++machine.allocation_calls;
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
