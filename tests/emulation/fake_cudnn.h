// SPDX-License-Identifier: Apache-2.0
// cuDNN for tests (LOCKSTEP_CUDNN_LIBRARY): a library of its own that computes convolutions, and
// graphs operation by operation (fake_cudnn_graph.cc), in plain loops in the emulated GPU's memory.
// A test that opens the same file gets at its switches by kFakeCudnnSymbol. Each direction, and
// each graph, has the deterministic algorithms 1 and 2, of which 2 adds the other way round; one
// that is not deterministic, 0; one that wants too much workspace, 3; and one that it says it does
// not support, 4. For graphs these are engines, 1 with a knob of its own. Thread-safety: one thread
// at a time.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::fake_cudnn {

struct Call {
  int direction = 0;  // 0: forward, 1: gradient of the images, 2: of the filters, 3: a graph
  int algorithm = 0;
  int groups = 1;
  int type = 0;  // as cudnn.h numbers types and kinds of arithmetic
  int math = 0;
  int products = 0;  // of a graph
};

struct Switches {
  // Gives work to a stream of the emulated GPU; empty: by that of the module that the process has
  // loaded (LOCKSTEP_CUDA_MODULE).
  std::function<int(void* stream, std::function<void()> work)> enqueue;
  std::function<void(double milliseconds)> spend;
  double milliseconds = 1;  // of a run of algorithm 1; 2 takes twice as long
  size_t workspace_bytes = 64;
  bool leaves_one_out = false;  // algorithm 1 leaves a product out of the last value
  bool drifts = false;          // algorithm 1 gives other bits in each run
  int run_status = 0;           // what runs of algorithm 1 give
  int create_status = 0;
  int find_status = 0;             // what asking for a convolution's algorithms gives
  int graph_status = 0;            // what the end of a graph gives
  bool proposes_none = false;      // as without its compiler
  bool proposes_unsteady = false;  // alone, of a graph: the one that is not deterministic
  int heuristics_status = 0;       // what asking for a graph's engines gives
  int fallback_status = 0;         // the same of those to fall back to
  size_t version = 91900;
  int missing = -1;  // the algorithm that the library has no more
  // What came to pass.
  std::vector<Call> calls;  // work that was done
  int64_t handles = 0;      // that live
  int64_t descriptors = 0;
};

// Switches* lockstep_fake_cudnn().
inline constexpr const char* kFakeCudnnSymbol = "lockstep_fake_cudnn";

}  // namespace lockstep::fake_cudnn

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_H_
