// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/softmax_rows.h"

#include "engine/math/math.h"
#include "engine/ops/counts.h"

namespace lockstep::engine::cpu {
namespace {

// The sum of a row in a fixed order: eight partial sums, then these.
double RowSum(const float* x, int64_t n) {
  double lanes[8] = {};
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(x[j + l]);
  }
  double sum = 0;
  for (; j < n; ++j) sum += static_cast<double>(x[j]);
  for (const double lane : lanes) sum += lane;
  return sum;
}

// The gradient of a row whose exponentials and their sum are given.
void FinishGradient(const SimdKernels& simd, const SoftmaxRows& rows, int32_t label, double sum,
                    float* dx) {
  const float seed = *rows.seed;
  simd.scale(dx, static_cast<float>(static_cast<double>(seed) / sum), rows.classes, false, dx);
  for (int64_t j = rows.classes; j < rows.columns; ++j) dx[j] = 0;
  if (rows.smoothing > 0) {
    const double each = rows.smoothing / static_cast<double>(rows.classes);
    const float part = static_cast<float>(static_cast<double>(seed) * each);
    for (int64_t j = 0; j < rows.classes; ++j) dx[j] -= part;
  }
  dx[label] -= static_cast<float>(static_cast<double>(seed) * (1 - rows.smoothing));
}

}  // namespace

void RunSoftmaxRows(const SimdKernels& simd, const SoftmaxRows& rows, int64_t m,
                    SoftmaxSums* sums) {
  for (int64_t i = 0; i < m; ++i) {
    const float* x = rows.logits + i * rows.columns;
    float* dx = rows.gradient != nullptr ? rows.gradient + i * rows.columns : nullptr;
    const int32_t label = rows.labels[i];
    if (label < 0) {  // ignored
      for (int64_t j = 0; dx != nullptr && j < rows.columns; ++j) dx[j] = 0;
      continue;
    }
    const float max = simd.max(x, rows.classes);
    // Read before dx overwrites them.
    double target = static_cast<double>(x[label]);
    if (rows.smoothing > 0) {
      const double mean = RowSum(x, rows.classes) / static_cast<double>(rows.classes);
      target += rows.smoothing * (mean - target);
    }
    const double sum = simd.exp_sum(x, max, rows.classes, dx);
    sums->loss += Log(sum) + (static_cast<double>(max) - target);
    ++sums->count;
    if (dx != nullptr) FinishGradient(simd, rows, label, sum, dx);
    if (rows.bias != nullptr) simd.add(rows.bias, dx, rows.columns, rows.bias);
  }
}

void WriteSoftmaxSums(const SoftmaxSums& sums, const SoftmaxRows& rows) {
  const auto put = [&](float* out, float value) { *out = rows.add_sums ? *out + value : value; };
  put(rows.loss, static_cast<float>(sums.loss));
  const SplitCount split = Split(sums.count);
  put(rows.count, split.high);
  put(rows.count + 1, split.low);
}

}  // namespace lockstep::engine::cpu
