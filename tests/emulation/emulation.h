// SPDX-License-Identifier: Apache-2.0
// Settings and counters of the emulated GPU (include/cuda_runtime.h).
// Thread-safety: one thread at a time.
#ifndef LOCKSTEP_TESTS_EMULATION_EMULATION_H_
#define LOCKSTEP_TESTS_EMULATION_EMULATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cuda/kernels/tables.h"

namespace emulation {

// The order in which the threads of a block run between two barriers. Kernels without races give
// the same bits in each.
enum class Order { kForward, kBackward };
void SetOrder(Order order);

// Returns what is allocated now, and the most that can be.
size_t AllocatedBytes();
// Of these bytes, how many lie in the one stretch of page-locked memory that has the most of them.
size_t LockedBytes(uintptr_t begin, size_t bytes);
// Page-locked memory that was not allocated as such.
size_t RegisteredBytes();
// Returns whether memory may be copied to or from: as the driver documents it, the host's is
// page-locked as a whole, by one call, or nowhere.
bool CanCopy(const void* pointer, size_t bytes);
// Calls that allocated memory of the device or page-locked memory.
int64_t Allocations();
void SetTotalBytes(size_t bytes);
// Of a multiprocessor's shared memory, as the driver tells it; and the most that a block has asked
// for since it was set.
void SetSharedBytes(size_t bytes);
size_t SharedBytesAsked();
// As the driver calls it, and whether a device was chosen since the program began.
void SetDeviceName(const char* name);
bool DeviceIsChosen();
// Kernels launched since the program began.
int64_t Launches();
// Products of sm_90a that threads began.
int64_t GroupProducts();

// Captures that were ended, and calls that waited for work of the device that was not done (a
// stream, an event; lazy streams alone have such work).
int64_t Captures();
// Graphs that were launched, and all that was given to streams: kernels, copies and graphs, but not
// what was captured.
int64_t GraphLaunches();
int64_t Submissions();
int64_t Waits();

// When a stream's work is done: at once, or as late as it can be, when something waits for it. What
// lacks an event between two streams gives other results then.
enum class Streams { kEager, kLazy };
void SetStreams(Streams streams);

// Work that is given to a stream fails from the `count`-th on, as after a fault of a kernel: no
// call that may fail succeeds until Repair. The environment's LOCKSTEP_EMULATED_FAILURE, "N PATH",
// does the same to the first process that gets so far and can remove the file.
void FailAfter(int64_t count);
void Repair();

// Lets emulated time pass, which events show.
void Spend(double milliseconds);
// The paths that the library of matrix products was last looked for in.
const std::vector<std::string>& MatmulPaths();
// Products have three algorithms: 0 adds along k, 1 from its end, and 2 fails when it runs. They
// take 3, 2 and 1 ms, or `fastest` takes no time.
void SetFastestAlgorithm(int fastest);
// What a product takes longer when something that follows it is a part.
void SetFusedCost(double milliseconds);
// Runs of products so far.
int64_t ProductsRun();
// Of products with what follows them as a part.
int64_t FusedProductsRun();
// Of products whose factors are bytes of FP8.
int64_t Fp8ProductsRun();

}  // namespace emulation

namespace lockstep::engine::cuda {
// The module's tables with the emulated GPU below them.
const Tables* EmulatedTables();
}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_TESTS_EMULATION_EMULATION_H_
