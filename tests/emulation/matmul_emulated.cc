// SPDX-License-Identifier: Apache-2.0
// Matrix products of the emulated GPU, in plain loops, and its tables. A bias is added where it has
// the result's type, as by the real library; those of fp16 factors add none and have no other
// epilogues, as the real one may: so both ways of the engine are tested.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
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
// A byte of FP8, by the definition of its format.
float At(const void* data, Fp8 fp8, int64_t i) {
  const int bits = static_cast<const uint8_t*>(data)[i];
  const int fraction_bits = fp8 == Fp8::kE4M3 ? 3 : 2, bias = fp8 == Fp8::kE4M3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  const float x =
      std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - fraction_bits);
  return (bits & 0x80) != 0 ? -x : x;
}
float Factor(const void* data, const MatmulShape& shape, Fp8 fp8, int64_t i) {
  return fp8 == Fp8::kNone ? At(data, shape.factors, i) : At(data, fp8, i);
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
int64_t fp8_products = 0;
int64_t fused_products = 0;
double fused_cost = 0;

struct Prepared {
  MatmulShape shape;
  bool fused;
  int algorithm;
};

std::vector<std::string> looked_in;
bool loaded = false;

const char* Load(const char* const* paths, int count) {
  looked_in.assign(paths, paths + count);
  if (!emulation::DeviceIsChosen()) return "products are loaded before a device is chosen";
  loaded = true;
  return "";
}
// Returns whether Load was called, as products want it; else `error` says so.
bool IsLoaded(char* error, size_t error_bytes) {
  if (!loaded) std::snprintf(error, error_bytes, "cuBLASLt is not loaded");
  return loaded;
}
const char* Version() { return "emulated"; }

bool Wants(const MatmulShape& shape) {
  return shape.bias || shape.relu || shape.epilogue != Epilogue::kNone;
}

bool CanFuse(const MatmulShape& shape) {
  if (!Wants(shape) || (shape.bias && shape.bias_type != shape.result)) return false;
  const bool relu_alone = !shape.bias && shape.epilogue == Epilogue::kNone;
  const bool fp8 = shape.a_fp8 != Fp8::kNone;
  return relu_alone || (!fp8 && shape.factors != Type::kF16);
}

int Candidates(const MatmulShape& shape, size_t, MatmulAlgorithm* found, char* error,
               size_t error_bytes) {
  if (!IsLoaded(error, error_bytes)) return 0;
  if (shape.factors == Type::kF32 && shape.result != Type::kF32) {
    std::snprintf(error, error_bytes, "fp32 factors have an fp32 result");
    return 0;
  }
  // As the library on sm_90.
  const bool fp8 = shape.a_fp8 != Fp8::kNone;
  const bool fits = !shape.a_transposed && shape.b_transposed && shape.n % 16 == 0 &&
                    shape.k % 16 == 0 && (shape.a_fp8 == Fp8::kE4M3 || shape.b_fp8 == Fp8::kE4M3);
  if (fp8 && !fits) {
    std::snprintf(error, error_bytes, "no such product of factors in FP8");
    return 0;
  }
  for (int i = 0; i < kAlgorithms; ++i) {
    found[i] = {{static_cast<uint64_t>(i)}, 0, CanFuse(shape)};
  }
  return kAlgorithms;
}
void* Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm, char* error,
              size_t error_bytes) {
  if (!IsLoaded(error, error_bytes)) return nullptr;
  if (algorithm.words[0] < kAlgorithms) {
    return new Prepared{shape, algorithm.fused, static_cast<int>(algorithm.words[0])};
  }
  std::snprintf(error, error_bytes, "there is no such algorithm");
  return nullptr;
}
bool Fuses(const void* prepared) { return static_cast<const Prepared*>(prepared)->fused; }
void Destroy(void* prepared) { delete static_cast<Prepared*>(prepared); }

constexpr float kScale = 0.7978845608f, kCube = 0.044715f;
float Gelu(float x) { return 0.5f * x * (1 + std::tanh(kScale * (x + kCube * x * x * x))); }
float GeluSlope(float x) {
  const float t = std::tanh(kScale * (x + kCube * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x);
}

// Sums over k of a factor, a row or a column of it at a time.
void AddFactor(const MatmulShape& s, const void* a, const void* b, float* sums) {
  const bool first = s.epilogue == Epilogue::kSumsA;
  for (int64_t i = 0; i < (first ? s.m : s.n); ++i) {
    sums[i] = 0;
    for (int64_t p = 0; p < s.k; ++p) {
      const int64_t at = first ? (s.a_transposed ? p * s.lda + i : i * s.lda + p)
                               : (s.b_transposed ? i * s.ldb + p : p * s.ldb + i);
      sums[i] += At(first ? a : b, s.factors, at);
    }
  }
}

// Which place along k is added as number `step`.
int64_t PlaceOf(const Prepared& prepared, int64_t step) {
  return prepared.algorithm == 0 ? step : prepared.shape.k - 1 - step;
}

// A sum of products of FP8 as Hopper's tensor cores make it. An instruction takes 32 products and
// cuts each off 13 bits behind the point of the largest; what instructions give is added in fp32.
constexpr int64_t kFp8Products = 32;
constexpr int kFp8FractionBits = 13;
float Fp8Sum(const Prepared& prepared, const float* x, const float* y, int64_t y_stride) {
  const int64_t k = prepared.shape.k;
  std::array<float, kFp8Products> products;
  float sum = 0;
  for (int64_t first = 0; first < k; first += kFp8Products) {
    const int64_t count = std::min(kFp8Products, k - first);
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t p = PlaceOf(prepared, first + i);
      products[static_cast<size_t>(i)] = x[p] * y[p * y_stride];
      largest = std::max(largest, std::fabs(products[static_cast<size_t>(i)]));
    }
    const float unit =
        largest > 0 ? std::ldexp(1.0f, std::ilogb(largest) - kFp8FractionBits) : 1.0f;
    float part = 0;
    for (int64_t i = 0; i < count; ++i) {
      part += std::trunc(products[static_cast<size_t>(i)] / unit) * unit;
    }
    sum += part;
  }
  return sum;
}

void Multiply(const Prepared& prepared, const MatmulRun& run) {
  const auto& [a, b, c, bias, aux, a_unit, b_unit, adds, workspace, addend] = run;
  const MatmulShape& s = prepared.shape;
  const float unit = s.a_fp8 == Fp8::kNone ? 1 : *a_unit * *b_unit;
  const Epilogue epilogue = prepared.fused ? s.epilogue : Epilogue::kNone;
  if (epilogue == Epilogue::kSumsA || epilogue == Epilogue::kSumsB) {
    AddFactor(s, a, b, static_cast<float*>(aux));
  }
  const int64_t m = s.m, n = s.n, k = s.k;
  std::vector<float> rows(static_cast<size_t>(n)), left(static_cast<size_t>(k)),
      right(static_cast<size_t>(k * n));
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      right[static_cast<size_t>(p * n + j)] =
          Factor(b, s, s.b_fp8, s.b_transposed ? j * s.ldb + p : p * s.ldb + j);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      left[static_cast<size_t>(p)] =
          Factor(a, s, s.a_fp8, s.a_transposed ? p * s.lda + i : i * s.lda + p);
    }
    std::fill(rows.begin(), rows.end(), 0.0f);
    for (int64_t j = 0; s.a_fp8 != Fp8::kNone && j < n; ++j) {
      rows[static_cast<size_t>(j)] = Fp8Sum(prepared, left.data(), right.data() + j, n);
    }
    for (int64_t step = 0; s.a_fp8 == Fp8::kNone && step < k; ++step) {
      const int64_t p = PlaceOf(prepared, step);
      const float x = left[static_cast<size_t>(p)];
      const float* y = right.data() + p * n;
      for (int64_t j = 0; j < n; ++j) rows[static_cast<size_t>(j)] += x * y[j];
    }
    for (int64_t j = 0; j < n; ++j) {
      float value = rows[static_cast<size_t>(j)] * unit;
      if (adds) value += At(c, s.result, i * s.ldc + j);
      if (addend != nullptr) value += At(addend, s.result, i * s.ldc + j);
      if (prepared.fused && s.bias) value += At(bias, s.bias_type, j);
      if (prepared.fused && s.relu) value = std::max(value, 0.0f);
      if (epilogue == Epilogue::kGeluKept) {
        Put(aux, s.result, i * s.ldc + j, value);
        value = Gelu(value);
      }
      if (epilogue == Epilogue::kGeluGradient) value *= GeluSlope(At(aux, s.result, i * s.ldc + j));
      Put(c, s.result, i * s.ldc + j, value);
    }
  }
}

Code Run(const void* prepared, const MatmulRun& run, Stream stream) {
  const Prepared copy = *static_cast<const Prepared*>(prepared);
  ++products;
  fused_products += copy.fused ? 1 : 0;
  fp8_products += copy.shape.a_fp8 != Fp8::kNone ? 1 : 0;
  if (copy.algorithm == 2) return kMatmulErrors + 1;
  return emulation::Do(static_cast<cudaStream_t>(stream), [=] {
    emulation::Spend(copy.algorithm == fastest ? 0 : kAlgorithms - copy.algorithm);
    if (copy.fused) emulation::Spend(fused_cost);
    Multiply(copy, run);
  });
}

}  // namespace

const Matmul kMatmul = {
    "libproducts.so.13", Load, Version, Candidates, Prepare, Fuses, Run, Destroy};

const Tables* EmulatedTables() {
  static const Tables tables = {kTablesVersion, "an emulated GPU", true,
                                &kRuntime,      &kKernels,         &kMatmul};
  return &tables;
}

}  // namespace lockstep::engine::cuda

void emulation::SetFastestAlgorithm(int algorithm) { lockstep::engine::cuda::fastest = algorithm; }
void emulation::SetFusedCost(double milliseconds) {
  lockstep::engine::cuda::fused_cost = milliseconds;
}
int64_t emulation::FusedProductsRun() { return lockstep::engine::cuda::fused_products; }
int64_t emulation::Fp8ProductsRun() { return lockstep::engine::cuda::fp8_products; }
const std::vector<std::string>& emulation::MatmulPaths() {
  return lockstep::engine::cuda::looked_in;
}
int64_t emulation::ProductsRun() { return lockstep::engine::cuda::products; }
