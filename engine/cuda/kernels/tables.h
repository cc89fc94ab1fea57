// SPDX-License-Identifier: Apache-2.0
// What the CUDA module offers: tables of functions, so that nothing of CUDA is linked into the
// programs and no C++ object of a library crosses the border. The module is a shared library that
// the engine loads when a job asks for a GPU (cuda/module.h). Kernels run in the order of their
// stream; no function waits for the device unless it says so.
//
// Thread-safety: the functions may be called by one thread for each device context.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_TABLES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_TABLES_H_

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels/product_types.h"
#include "engine/cuda/kernels/row_types.h"
#include "engine/cuda/kernels/types.h"
#include "engine/cuda/kernels/update_types.h"

namespace lockstep::engine::cuda {

// Grows with every change of a table or of an argument: engine and module must agree.
inline constexpr int kTablesVersion = 12;

// A function of the module.
template <typename F>
using Call = F*;
// Launches the kernels of one family.
template <typename Args>
using KernelCall = Call<Code(const Args& args, Stream stream)>;

struct DeviceProperties {
  char name[256] = {};
  char uuid[64] = {};  // "GPU-...", "MIG-..."
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
  int runtime_version = 0;  // 13000
  int driver_version = 0;
};

// Streams, events, memory. Functions that return a Code leave their outputs alone when it is not 0.
struct Runtime {
  Call<const char*(Code code)> error_text;
  Call<Code(int* count)> device_count;
  Call<Code(int device, DeviceProperties* properties)> properties;
  Call<Code(int device)> set_device;
  Call<Code(size_t* free_bytes, size_t* total_bytes)> memory;

  Call<Code(size_t bytes, void** pointer)> allocate;  // device memory, 256-byte aligned
  Call<Code(void* pointer)> release;
  Call<Code(size_t bytes, void** pointer)> allocate_pinned;  // host memory
  Call<Code(void* pointer)> release_pinned;
  // Page-locks memory of the caller, so that copies of it overlap with kernels.
  Call<Code(void* pointer, size_t bytes)> pin;
  Call<Code(void* pointer)> unpin;

  Call<Code(Stream* stream)> create_stream;
  Call<Code(Stream stream)> destroy_stream;
  Call<Code(Stream stream)> wait_stream;  // blocks
  Call<Code(Event* event)> create_event;
  Call<Code(Event event)> destroy_event;
  Call<Code(Event event, Stream stream)> record_event;
  Call<Code(Stream stream, Event event)> stream_waits;
  Call<Code(Event event)> wait_event;  // blocks
  // An event that knows when it was reached, and the time between two that were.
  Call<Code(Event* event)> create_timer;
  Call<Code(Event begin, Event end, float* milliseconds)> elapsed;
  // 1: reached; 0: not yet; negative: minus a Code.
  Call<int(Event event)> event_reached;

  Call<Code(void* to, const void* from, size_t bytes, Stream stream)> copy;  // any direction
  Call<Code(void* pointer, size_t bytes, Stream stream)> clear;

  // What is launched on `stream` between the two is recorded and not run.
  Call<Code(Stream stream)> begin_capture;
  Call<Code(Stream stream, Recording* recording)> end_capture;
  Call<Code(Recording recording, Stream stream)> launch_graph;
  Call<Code(Recording recording)> destroy_graph;
};

struct Kernels {
#define LOCKSTEP_KERNELS(Args, name, Name) KernelCall<Args> name;
#include "engine/cuda/kernels/kernel_list.inc"
};

// Matrix products by a library. A product is prepared once and keeps its algorithm.
struct Matmul {
  // The library's file, as it was compiled for: "libcublasLt.so.13".
  const char* file;
  // Loads the library, once for the process, from the first of `paths` where it lies, and starts it
  // on the current device: a device is chosen before. The text is "" or what is missing; it lives
  // for ever.
  Call<const char*(const char* const* paths, int count)> load;
  // "cuBLASLt 13.1.0".
  Call<const char*()> version;
  // The algorithms that the library has for a product, its own choice first, at most
  // kMatmulCandidates; none whose order of additions may change from run to run. Returns how many;
  // 0 with a text in `error` [error_bytes].
  Call<int(const MatmulShape& shape, size_t workspace_bytes, MatmulAlgorithm* found, char* error,
           size_t error_bytes)>
      candidates;
  // Null with a text in `error` when the algorithm cannot do it.
  Call<void*(const MatmulShape& shape, const MatmulAlgorithm& algorithm, char* error,
             size_t error_bytes)>
      prepare;
  // Whether bias, relu and epilogue are part of the product; else the caller does all of it.
  Call<bool(const void* prepared)> fuses;
  // 0 or an error of the library, plus 100000.
  Call<Code(const void* prepared, const MatmulRun& operands, Stream stream)> run;
  Call<void(void* prepared)> destroy;
};
inline constexpr Code kMatmulErrors = 100000;

struct Tables {
  int version;
  const char* name;  // "CUDA 13000 for sm_80_90_100"
  bool warpgroups;   // there is code for sm_90a
  const Runtime* runtime;
  const Kernels* kernels;
  const Matmul* matmul;
};

// The module's one symbol: const Tables* lockstep_cuda_tables().
inline constexpr const char* kTablesSymbol = "lockstep_cuda_tables";

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_TABLES_H_
