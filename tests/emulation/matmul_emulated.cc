// SPDX-License-Identifier: Apache-2.0
// Matrix products of the emulated GPU, in plain loops, and its tables. Products of 16-bit results
// refuse to add a bias, as the real library may, so that both ways of the engine are tested.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/half.h"
#include "engine/cuda/kernels/runtime.h"
#include "tests/emulation/emulation.h"
#include "tests/emulation/include/cuda_runtime.h"

namespace lockstep::engine::cuda {
namespace {

float At(const void* data, Type type, int64_t i) {
  if (type == Type::kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == Type::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}
void Put(void* data, Type type, int64_t i, float x) {
  if (type == Type::kF32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<uint16_t*>(data)[i] =
        type == Type::kBF16 ? BFloat16::FromFloat(x).bits : Float16::FromFloat(x).bits;
  }
}

constexpr int kAlgorithms = 3;
int fastest = 0;
int64_t products = 0;

struct Prepared {
  MatmulShape shape;
  bool fused;
  int algorithm;
};

const char* Load() { return ""; }
const char* Version() { return "emulated"; }

int Candidates(const MatmulShape& shape, size_t, MatmulAlgorithm* found, char* error,
               size_t error_bytes) {
  if (shape.factors == Type::kF32 && shape.result != Type::kF32) {
    std::snprintf(error, error_bytes, "fp32 factors have an fp32 result");
    return 0;
  }
  for (int i = 0; i < kAlgorithms; ++i) {
    found[i] = {{static_cast<uint64_t>(i)}, 0, shape.result == Type::kF32 || !shape.bias};
  }
  return kAlgorithms;
}
void* Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm, char* error,
              size_t error_bytes) {
  if (algorithm.words[0] < kAlgorithms) {
    return new Prepared{shape, algorithm.fused, static_cast<int>(algorithm.words[0])};
  }
  std::snprintf(error, error_bytes, "there is no such algorithm");
  return nullptr;
}
bool Fuses(const void* prepared) { return static_cast<const Prepared*>(prepared)->fused; }
void Destroy(void* prepared) { delete static_cast<Prepared*>(prepared); }

void Multiply(const Prepared& prepared, const void* a, const void* b, void* c, const void* bias,
              bool adds) {
  const MatmulShape& s = prepared.shape;
  const int64_t m = s.m, n = s.n, k = s.k;
  std::vector<float> rows(static_cast<size_t>(n)), right(static_cast<size_t>(k * n));
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      right[static_cast<size_t>(p * n + j)] =
          At(b, s.factors, s.b_transposed ? j * s.ldb + p : p * s.ldb + j);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    std::fill(rows.begin(), rows.end(), 0.0f);
    for (int64_t step = 0; step < k; ++step) {
      const int64_t p = prepared.algorithm == 0 ? step : k - 1 - step;
      const float x = At(a, s.factors, s.a_transposed ? p * s.lda + i : i * s.lda + p);
      const float* y = right.data() + p * n;
      for (int64_t j = 0; j < n; ++j) rows[static_cast<size_t>(j)] += x * y[j];
    }
    for (int64_t j = 0; j < n; ++j) {
      float value = rows[static_cast<size_t>(j)];
      if (adds) value += At(c, s.result, i * s.ldc + j);
      if (prepared.fused && s.bias) value += At(bias, s.bias_type, j);
      if (prepared.fused && s.relu) value = std::max(value, 0.0f);
      Put(c, s.result, i * s.ldc + j, value);
    }
  }
}

Code Run(const void* prepared, const void* a, const void* b, void* c, const void* bias, bool adds,
         void*, Stream stream) {
  const Prepared copy = *static_cast<const Prepared*>(prepared);
  ++products;
  if (copy.algorithm == 2) return kMatmulErrors + 1;
  return emulation::Do(static_cast<cudaStream_t>(stream), [=] {
    emulation::Spend(copy.algorithm == fastest ? 0 : kAlgorithms - copy.algorithm);
    Multiply(copy, a, b, c, bias, adds);
  });
}

}  // namespace

const Matmul kMatmul = {Load, Version, Candidates, Prepare, Fuses, Run, Destroy};

const Tables* EmulatedTables() {
  static const Tables tables = {kTablesVersion, "an emulated GPU", &kRuntime, &kKernels, &kMatmul};
  return &tables;
}

}  // namespace lockstep::engine::cuda

void emulation::SetFastestAlgorithm(int algorithm) { lockstep::engine::cuda::fastest = algorithm; }
int64_t emulation::ProductsRun() { return lockstep::engine::cuda::products; }
