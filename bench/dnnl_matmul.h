// SPDX-License-Identifier: Apache-2.0
// One matrix product by oneDNN's matmul on plain operands, for bench_gemm. Thread-safety: confined
// to one thread.
#ifndef LOCKSTEP_BENCH_DNNL_MATMUL_H_
#define LOCKSTEP_BENCH_DNNL_MATMUL_H_

#include <memory>

#include "engine/cpu/gemm.h"

namespace lockstep::bench {

class DnnlMatmul {
 public:
  // Prepares c[m, n] = op(a) op(b); the operands outlive it.
  DnnlMatmul(const engine::GemmShape& shape, const float* a, const float* b, float* c);
  ~DnnlMatmul();
  DnnlMatmul(const DnnlMatmul&) = delete;
  DnnlMatmul& operator=(const DnnlMatmul&) = delete;

  // Blocks until the product is whole.
  void Run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_DNNL_MATMUL_H_
