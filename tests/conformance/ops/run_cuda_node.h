// SPDX-License-Identifier: Apache-2.0
// One op's CUDA kernel on buffers of its own, on the emulated GPU or on this machine's.
// Thread-safety: one thread at a time.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_CUDA_NODE_H_
#define LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_CUDA_NODE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/kernel.h"
#include "tests/conformance/ops/made_case.h"

namespace lockstep::engine {

// The GPU under test. Ends the test where it fails.
struct Gpu {
  const cuda::Tables* tables = nullptr;
  bool warpgroups = false;  // its kernels of sm_90a are taken
  cuda::Stream stream = nullptr;
  void* workspace = nullptr;

  Gpu(const cuda::Tables* tables, bool warpgroups);
  void Check(cuda::Code code, const char* what) const;
  void Copy(void* to, const void* from, size_t bytes) const;
};
const Gpu& Emulated();
// The same with the kernels of sm_90a.
const Gpu& EmulatedWarpgroups();
// Null without a GPU that can be used, which ends the test where LOCKSTEP_TEST_GPU asks for one.
const Gpu* Real();

struct RunOptions {
  size_t shift = 0;         // elements by which buffers are off their alignment
  bool accumulate = false;  // outputs start as 1 and are added to
  bool fp8 = false;
};
// Runs one node. Fails the test when it writes beyond its outputs or its scratch.
std::vector<Doubles> RunNode(const Gpu& gpu, const Prepared& p, const RunOptions& options);
inline std::vector<Doubles> RunNode(const Gpu& gpu, const Prepared& p, size_t shift,
                                    bool accumulate) {
  return RunNode(gpu, p, {.shift = shift, .accumulate = accumulate});
}

// The bits of all results, so that NaN is equal to itself.
std::vector<uint64_t> Bits(const std::vector<Doubles>& values);

// Where the library has no such epilogue, the product is rounded before gelu, as it is by itself.
bool RoundsTheProduct(const OpCase& test);
// Tensor cores take attention's probabilities in 16 bits: the sums of products with them have an
// error of as many units of the largest one. Where they cannot do it nothing is rounded inside.
double InnerRounding(const OpDef& op, const OpCase& test, DType type,
                     const std::vector<Doubles>& expected);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_CUDA_NODE_H_
