// SPDX-License-Identifier: Apache-2.0
// The inside of the self-check: runs one kernel of an instruction set, and the portable one, on the
// same made data and compares the bits that they leave. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_ENGINE_CPU_KERNEL_COMPARISON_H_
#define LOCKSTEP_ENGINE_CPU_KERNEL_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/cpu/self_check.h"

namespace lockstep::engine {

// Elements of most comparisons: whole vectors of every set, and a rest.
inline constexpr int64_t kCheckCount = 77;
// Of sums along a row: parts of sixteen lanes, and rests behind them.
inline constexpr int64_t kCheckCounts[] = {1, 7, 8, 9, 16, 21, 29, kCheckCount};
// Of matrices.
inline constexpr int64_t kCheckRows = 7;
inline constexpr int64_t kCheckColumns = 203;
inline constexpr int64_t kCheckStride = 208;

// Returns whether a and b have the same bits; every NaN is as good as another.
bool SameBits(float a, float b);
// `count` values in [-2, 2), others for another site.
std::vector<float> MadeValues(uint64_t site, size_t count);

class KernelComparison {
 public:
  explicit KernelComparison(const KernelTables& tables);

  // `run` writes some of 8192 floats, which are made values before; all of them are compared
  // afterwards. Does nothing once something was wrong.
  void Run(const std::string& kernel, absl::FunctionRef<void(const KernelTables&, float*)> run);
  // `kernel` is wrong, unless another one was before.
  void Fail(const std::string& kernel);

  const KernelTables& tables() const { return tables_; }
  // The first wrong kernel, or "".
  const std::string& wrong() const { return wrong_; }
  // 4096 values in [-2, 2); those of positive() in (0, 2.01).
  const float* x() const { return x_.data(); }
  const float* y() const { return y_.data(); }
  const float* z() const { return z_.data(); }
  const float* positive() const { return positive_.data(); }

 private:
  const KernelTables tables_;
  const KernelTables portable_;
  const std::vector<float> x_, y_, z_, before_;
  std::vector<float> positive_;
  std::vector<float> results_;
  std::vector<float> expected_;
  std::string wrong_;
};

// Each compares the kernels of one header.
void CheckProducts(KernelComparison* compare);  // simd.h
void CheckRowKernels(KernelComparison* compare);
void CheckOptimKernels(KernelComparison* compare);
void CheckImageKernels(KernelComparison* compare);
void CheckHalfKernels(KernelComparison* compare);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_KERNEL_COMPARISON_H_
