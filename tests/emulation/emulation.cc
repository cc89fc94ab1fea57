// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"
#include "tests/emulation/include/cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {
namespace {

// No power of two: the stacks' ends would all lie in the same few lines of a cache.
constexpr size_t kStackBytes = (128 << 10) + 17 * 64;
constexpr int kMaxThreads = 1024;
constexpr int kLanes = 32;

struct Warp {
  alignas(16) char slots[2][kLanes * kSharedBytes];
  int arrived = 0;
  int64_t generation = 0;
};

// One of a block's barriers at which some threads come without waiting.
struct Barrier {
  int threads = 0;  // how many come, as the first of them says
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
  bool is_late = false;  // goes on when no other thread can
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
  std::array<Barrier, 16> barriers;
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
  size_t shared_bytes = 228 << 10;
  size_t most_asked = 0;
};
Machine machine;

// Goes on where `to` was saved, and leaves in *save what brings one back behind this. No call and
// no return: threads of a warp come to the same places one after the other, and a processor expects
// their returns where it saw their calls.
__attribute__((always_inline)) inline void SwitchStack(void** save, void* to) {
  asm volatile(R"(
    subq $128, %%rsp  # what a function may have below its stack
    pushq %%rbp
    pushq %%rbx
    leaq 1f(%%rip), %%rax
    pushq %%rax
    movq %%rsp, (%0)
    movq %1, %%rsp
    popq %%rax
    jmp *%%rax
  1:
    popq %%rbx
    popq %%rbp
    addq $128, %%rsp
)"
               : "+D"(save), "+S"(to)
               :
               : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
                 "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                 "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

__attribute__((always_inline)) inline void Yield() {
  SwitchStack(&machine.current->stack_pointer, machine.scheduler);
}

__attribute__((always_inline)) inline void WaitFor(const int64_t* counter) {
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
  thread.stack_pointer = top - 16;
}

__attribute__((always_inline)) inline bool Resume(Thread& thread) {
  if (thread.done || thread.is_late) return false;
  if (thread.waits_on != nullptr && *thread.waits_on == thread.waits_for) return false;
  thread.waits_on = nullptr;
  machine.current = &thread;
  threadIdx = thread.index;
  SwitchStack(&machine.scheduler, thread.stack_pointer);
  return true;
}

// Lets one of those go on that are late: the first one in every second block, the last one in the
// others, so that each part of a block is as far ahead of the rest as barriers let it be.
bool ResumeLate() {
  for (int t = 0; t < machine.count; ++t) {
    const int number = blockIdx.x % 2 == 0 ? t : machine.count - 1 - t;
    Thread& thread = machine.threads[static_cast<size_t>(number)];
    if (std::exchange(thread.is_late, false)) return Resume(thread);
  }
  return false;
}

// Lets a warp's threads go on as far as they can without others; false when none could.
bool RunWarp(int warp) {
  const int first = warp * kLanes, count = std::min(kLanes, machine.count - first);
  bool any = false;
  for (bool moved = true; moved; any |= moved) {
    moved = false;
    for (int lane = 0; lane < count; ++lane) {
      const int t = first + (machine.order == Order::kForward ? lane : count - 1 - lane);
      moved |= Resume(machine.threads[static_cast<size_t>(t)]);
    }
  }
  return any;
}

void RunBlock(dim3 block, size_t shared) {
  machine.done = machine.arrived = 0;
  std::memset(machine.shared, 0x7f, shared);  // it is not zero at the start
  for (int t = 0; t < machine.count; ++t) Start(t, block);
  for (Warp& warp : machine.warps) warp.arrived = 0;
  machine.barriers.fill({});
  const int warps = (machine.count + kLanes - 1) / kLanes;
  while (machine.done < machine.count) {
    bool moved = false;
    for (int warp = 0; warp < warps; ++warp) {
      moved |= RunWarp(machine.order == Order::kForward ? warp : warps - 1 - warp);
    }
    LS_CHECK(moved || ResumeLate())
        << "threads of a block wait at a barrier that the others never reach";
  }
  for (const Barrier& barrier : machine.barriers) {
    LS_CHECK_EQ(barrier.arrived, 0) << "a block ends while threads have come to a barrier";
  }
}

}  // namespace

void SetOrder(Order order) { machine.order = order; }
void SetSharedBytes(size_t bytes) {
  machine.shared_bytes = bytes;
  machine.most_asked = 0;
}
size_t SharedBytesAsked() { return machine.most_asked; }
int64_t Launches() { return machine.launches; }
int64_t GroupProducts() { return machine.group_products; }

namespace {
// Apart, since what it takes of a stack is taken of each thread's.
[[noreturn, gnu::noinline]] void EndAtPartOfWarp() {
  LS_CHECK(false) << "a warp that is not full exchanges values";
  __builtin_unreachable();
}
}  // namespace

int Lane() { return static_cast<int>((machine.current - machine.threads.data()) % kLanes); }

const void* ShareBytes(const void* bytes, size_t count) {
  if (machine.count % kLanes != 0) EndAtPartOfWarp();
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

namespace {
// Returns whether the thread is the last one to come.
bool Come(int number, int threads) {
  LS_CHECK_GE(number, 1) << "barrier 0 is __syncthreads";
  LS_CHECK_EQ(threads % 32, 0) << "whole warps come to a barrier";
  Barrier& barrier = machine.barriers.at(static_cast<size_t>(number));
  if (barrier.arrived == 0) barrier.threads = threads;
  LS_CHECK_EQ(barrier.threads, threads) << "threads do not agree on how many come to a barrier";
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  return true;
}
}  // namespace

void WaitAt(int barrier, int threads) {
  if (!Come(barrier, threads)) {
    WaitFor(&machine.barriers.at(static_cast<size_t>(barrier)).generation);
  }
}
void ArriveAt(int barrier, int threads) {
  Come(barrier, threads);
  machine.current->is_late = true;
  Yield();
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

using emulation::machine;

void __syncthreads() {
  if (++machine.arrived == machine.count) {
    machine.arrived = 0;
    ++machine.generation;
    return;
  }
  emulation::WaitFor(&machine.generation);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(machine.shared_bytes);
  return cudaSuccess;
}
