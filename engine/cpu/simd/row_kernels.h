// SPDX-License-Identifier: Apache-2.0
// The innermost loops of transformers: normalisation, activations, addressed dropout and the
// elementwise parts of attention, compiled once for each instruction set from row_kernels.inc.
// Sums along a row have sixteen lanes on every instruction set (simd_kernels.inc,
// docs/same_bits.md). Thread-safety: pure functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_SIMD_ROW_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_SIMD_ROW_KERNELS_H_

#include <cstdint>

#include "engine/cpu/isa.h"

namespace lockstep::engine {

enum class Activation { kGeluTanh, kGeluErf, kSilu, kTanh, kSigmoid };
inline constexpr int kActivations = 5;

// The address of random words: see ops/dropout.cc for what the numbers mean.
struct RandomSite {
  uint64_t key = 0;
  uint32_t step = 0;
  uint32_t shard = 0;
};
// Words of one block of addresses.
inline constexpr int64_t kRandomBlock = 64;

// A row of attention's scores before they are scaled. Up to the next multiple of 16 behind `seen`
// they and the words are readable, and the row's results writable.
struct ScoreRow {
  const float* scores = nullptr;
  int64_t seen = 0;  // that count, at least 1
  int64_t end = 0;   // results up to here are zeros from `seen` on
  float scale = 1;   // > 0
  // Dropout: as RowKernels::dropout. No words: none.
  const uint32_t* words = nullptr;
  uint32_t threshold = 0;
  float keep = 1;
};

// Kept keys or values of one head: `count` rows of `depth` floats, `stride` floats apart.
struct KeptRows {
  const float* at = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t depth = 0;
};
// Rows that attend to them, and their scores.
struct StepRows {
  const float* at = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
};
struct StepScores {
  float* at = nullptr;
  int64_t stride = 0;
};

struct RowKernels {
  // y = f(x).
  void (*activation[kActivations])(const float* x, int64_t n, float* y);
  // dx = dy * f'. `saved` is x for gelu and silu, y for tanh and sigmoid.
  void (*activation_backward[kActivations])(const float* dy, const float* saved, int64_t n,
                                            float* dx);
  // Both of bf16, computed in fp32 and rounded once.
  void (*activation_bf16[kActivations])(const uint16_t* x, int64_t n, uint16_t* y);
  void (*activation_backward_bf16[kActivations])(const uint16_t* dy, const uint16_t* saved,
                                                 int64_t n, uint16_t* dx);
  // `rows` of `columns` values, `stride` apart: y = f(y), the elements of `activation`.
  void (*activate_rows[kActivations])(int64_t rows, int64_t columns, int64_t stride, float* y);
  // One row: y = (x - mean) / sqrt(variance + eps) * gamma + beta (biased variance).
  void (*layer_norm)(const float* x, const float* gamma, const float* beta, int64_t n, float eps,
                     float* y, float* mean, float* rstd);
  // One row of the input's gradient, plus `residual` unless it is null.
  void (*layer_norm_backward)(const float* dy, const float* x, const float* gamma, float mean,
                              float rstd, const float* residual, int64_t n, float* dx);
  // dgamma[j] = sum of dy * (x - mean) * rstd, dbeta[j] = sum of dy, over rows ascending, begun
  // with what is there or with 0.
  void (*layer_norm_sums)(const float* dy, const float* x, const float* mean, const float* rstd,
                          int64_t stride, int64_t rows, int64_t columns, bool accumulate,
                          float* dgamma, float* dbeta);
  // sum of a * b.
  float (*dot)(const float* a, const float* b, int64_t n);
  // scores = scale * dot of each row with each key.
  void (*kept_scores)(const KeptRows& keys, const StepRows& rows, float scale,
                      const StepScores& scores);
  // y += score * value, product and sum rounded, values ascending; without `accumulate` the first
  // product begins the sum.
  void (*kept_sums)(const KeptRows& values, const StepScores& scores, int64_t rows, bool accumulate,
                    float* y, int64_t y_stride);
  // dx = y * (dy - dot).
  void (*softmax_backward)(const float* dy, const float* y, float dot, int64_t n, float* dx);
  // y = exp(x - shift), for x - shift <= 80.
  void (*exp_shifted)(const float* x, float shift, int64_t n, float* y);
  // Words 64 * block to 64 * block + 63 of a site: word e is word (e % 64) / 16 of the Philox
  // counter {c, c >> 32, step, shard} with c = 16 * (e / 64) + e % 16.
  void (*random_words)(const RandomSite& site, uint64_t block, uint32_t* words);
  // The masks of dropout: `words` becomes numbers below 2^16, those of elements 64 * block to
  // 64 * block + 63 of a site. That of element e is half e % 2 (0: the low one) of word
  // (e % 64) / 16 of Philox4x32 with 7 rounds, counter {c, c >> 32, step, shard} with
  // c = 8 * (e / 64) + e % 16 / 2.
  void (*random_halves)(const RandomSite& site, uint64_t block, uint32_t* words);
  // y = (word >= threshold ? x * scale : 0), plus `residual` unless it is null.
  void (*dropout)(const float* x, const uint32_t* words, uint32_t threshold, float scale,
                  const float* residual, int64_t n, float* y);
  // Attention's backward pass on one row of probabilities. Without words:
  // dp = p * (dp - delta). With words: m = (word >= threshold ? scale : 0),
  // dp = p * (m * dp - delta), p = m * p.
  void (*probability_gradient)(float* p, const uint32_t* words, uint32_t threshold, float scale,
                               float delta, int64_t n, float* dp);
  // The same on raw scores, with results rounded to bf16. Forward: max of the scores; e = exp(scale
  // (score - max)); p = m * e; returns the sum of e.
  float (*probabilities_bf16)(const ScoreRow& row, uint16_t* p, float* max);
  // Backward: e = exp(scale * score - log_sum); p = m * e; ds = e * (m * dp - delta).
  void (*probability_gradient_bf16)(const ScoreRow& row, const float* dp, float log_sum,
                                    float delta, uint16_t* p, uint16_t* ds);
  // sum of a * b, in fp32.
  float (*dot_bf16)(const uint16_t* a, const uint16_t* b, int64_t n);
  // y = factor * x, rounded to bf16.
  void (*scale_to_bf16)(const float* x, float factor, int64_t n, uint16_t* y);
};

// The kernels for `isa`. REQUIRES: this CPU has it.
const RowKernels& RowKernelsFor(Isa isa);

namespace simd {
extern const RowKernels kPortableRowKernels;
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;
}  // namespace simd

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_SIMD_ROW_KERNELS_H_
