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

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

// Grows with every change of a table or of an argument: engine and module must agree.
inline constexpr int kTablesVersion = 1;

struct DeviceProperties {
  char name[256] = {};
  char uuid[64] = {};  // "GPU-..."
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
  const char* (*error_text)(Code code);
  Code (*device_count)(int* count);
  Code (*properties)(int device, DeviceProperties* properties);
  Code (*set_device)(int device);
  Code (*memory)(size_t* free_bytes, size_t* total_bytes);

  Code (*allocate)(size_t bytes, void** pointer);  // device memory, 256-byte aligned
  Code (*release)(void* pointer);
  Code (*allocate_pinned)(size_t bytes, void** pointer);  // host memory
  Code (*release_pinned)(void* pointer);
  // Page-locks memory of the caller, so that copies of it overlap with kernels.
  Code (*pin)(void* pointer, size_t bytes);
  Code (*unpin)(void* pointer);

  Code (*create_stream)(Stream* stream);
  Code (*destroy_stream)(Stream stream);
  Code (*wait_stream)(Stream stream);  // blocks
  Code (*create_event)(Event* event);
  Code (*destroy_event)(Event event);
  Code (*record_event)(Event event, Stream stream);
  Code (*stream_waits)(Stream stream, Event event);
  Code (*wait_event)(Event event);  // blocks
  // 1: reached; 0: not yet; negative: minus a Code.
  int (*event_reached)(Event event);

  Code (*copy)(void* to, const void* from, size_t bytes, Stream stream);  // any direction
  Code (*clear)(void* pointer, size_t bytes, Stream stream);

  // What is launched on `stream` between the two is recorded and not run.
  Code (*begin_capture)(Stream stream);
  Code (*end_capture)(Stream stream, Recording* recording);
  Code (*launch_graph)(Recording recording, Stream stream);
  Code (*destroy_graph)(Recording recording);
};

struct Kernels {
  Code (*pointwise)(const PointwiseArgs& args, Stream stream);
  Code (*dropout)(const DropoutArgs& args, Stream stream);
  Code (*epilogue)(const EpilogueArgs& args, Stream stream);
  Code (*take_rows)(const TakeRowsArgs& args, Stream stream);
  Code (*transpose)(const TransposeArgs& args, Stream stream);
  Code (*column_sum)(const ColumnSumArgs& args, Stream stream);
  Code (*layer_norm)(const LayerNormArgs& args, Stream stream);
  Code (*layer_norm_backward_input)(const LayerNormBackwardInputArgs& args, Stream stream);
  Code (*layer_norm_backward_weight)(const LayerNormBackwardWeightArgs& args, Stream stream);
  Code (*softmax)(const SoftmaxArgs& args, Stream stream);
  Code (*cross_entropy)(const CrossEntropyArgs& args, Stream stream);
  Code (*embedding)(const EmbeddingArgs& args, Stream stream);
  Code (*embedding_backward)(const EmbeddingBackwardArgs& args, Stream stream);
  Code (*positions)(const PositionsArgs& args, Stream stream);
  Code (*positions_backward)(const PositionsArgs& args, Stream stream);
  Code (*attention)(const AttentionArgs& args, Stream stream);
  Code (*attention_backward)(const AttentionBackwardArgs& args, Stream stream);
  Code (*attention_step)(const AttentionStepArgs& args, Stream stream);
  Code (*batch_norm)(const BatchNormArgs& args, Stream stream);
  Code (*batch_norm_backward)(const BatchNormBackwardArgs& args, Stream stream);
  Code (*fold)(const FoldArgs& args, Stream stream);
  Code (*pool)(const PoolArgs& args, Stream stream);
  Code (*global_pool)(const GlobalPoolArgs& args, Stream stream);
  Code (*patches)(const PatchArgs& args, Stream stream);
  Code (*filters)(const FilterArgs& args, Stream stream);
  Code (*update)(const UpdateArgs& args, Stream stream);
  Code (*squares)(const SquaresArgs& args, Stream stream);
  Code (*normalise)(const NormaliseArgs& args, Stream stream);
  Code (*move)(const MoveArgs& args, Stream stream);
  Code (*statistic)(const StatisticArgs& args, Stream stream);
};

// Matrix products by a library. A product is prepared once and keeps its algorithm.
struct Matmul {
  // Loads the library. The text is "" or what is missing; it lives for ever.
  const char* (*load)();
  // "cuBLASLt 13.1.0".
  const char* (*version)();
  // Null with a text in `error` [error_bytes] when the library has no algorithm.
  void* (*prepare)(const MatmulShape& shape, size_t workspace_bytes, char* error,
                   size_t error_bytes);
  // Whether bias and relu are part of the product; else the caller adds them.
  bool (*fuses)(const void* prepared);
  // 0 or an error of the library, plus 100000.
  Code (*run)(const void* prepared, const void* a, const void* b, void* c, const void* bias,
              bool adds, void* workspace, Stream stream);
  void (*destroy)(void* prepared);
};
inline constexpr Code kMatmulErrors = 100000;

struct Tables {
  int version;
  const char* name;  // "CUDA 13.0 (sm_80 sm_90 ptx)"
  const Runtime* runtime;
  const Kernels* kernels;
  const Matmul* matmul;
};

// The module's one symbol: const Tables* lockstep_cuda_tables().
inline constexpr const char* kTablesSymbol = "lockstep_cuda_tables";

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_TABLES_H_
