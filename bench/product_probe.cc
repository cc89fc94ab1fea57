// SPDX-License-Identifier: Apache-2.0
#include "bench/product_probe.h"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/tuning.h"

namespace lockstep::bench {
namespace {

using engine::cuda::Epilogue;
using engine::cuda::MatmulAlgorithm;
using engine::cuda::MatmulShape;
using engine::cuda::Type;

// x [m, k] w^T of the forward passes, dy w and dy^T x of the backward passes.
std::vector<MatmulShape> Products(Type factors) {
  struct Layer {
    int64_t m, n, k;
  };
  // GPT-2's and BERT-Large's feed-forward layers and projections; the classifiers, BERT's as it is
  // and with rows of a multiple of 16 bytes.
  const Layer layers[] = {{65536, 3072, 768},  {65536, 768, 3072}, {65536, 2304, 768},
                          {8192, 4096, 1024},  {8192, 1024, 4096}, {8192, 50304, 768},
                          {8192, 30522, 1024}, {8192, 30528, 1024}};
  std::vector<MatmulShape> all;
  for (const auto& [m, n, k] : layers) {
    MatmulShape forward{.m = m, .n = n, .k = k, .b_transposed = true};
    forward.lda = forward.ldb = k;
    forward.ldc = n;
    MatmulShape input{.m = m, .n = k, .k = n};
    input.lda = n;
    input.ldb = input.ldc = k;
    MatmulShape weight{.m = n, .n = k, .k = m, .a_transposed = true};
    weight.lda = n;
    weight.ldb = weight.ldc = k;
    for (MatmulShape shape : {forward, input, weight}) {
      shape.factors = factors;
      shape.result = shape.a_transposed ? Type::kF32 : factors;
      shape.adds = shape.a_transposed;
      all.push_back(shape);
    }
  }
  return all;
}

// The ways in which a node may want it.
std::vector<MatmulShape> WithWhatFollows(const MatmulShape& plain) {
  std::vector<MatmulShape> all = {plain};
  const auto add = [&](Epilogue epilogue, bool relu, bool bias, Type type) {
    MatmulShape shape = plain;
    shape.epilogue = epilogue;
    shape.relu = relu;
    shape.bias = bias;
    shape.bias_type = type;
    all.push_back(shape);
  };
  if (plain.a_transposed) {
    add(Epilogue::kSumsA, false, false, Type::kF32);
  } else if (plain.b_transposed) {
    for (const Type type : {plain.factors, Type::kF32}) {
      add(Epilogue::kNone, false, true, type);
      add(Epilogue::kNone, true, true, type);
      add(Epilogue::kGeluKept, false, true, type);
      if (plain.factors == Type::kF32) break;
    }
  } else {
    add(Epilogue::kGeluGradient, false, false, Type::kF32);
  }
  return all;
}

void Probe(const engine::cuda::Device& device, const MatmulShape& shape) {
  std::vector<MatmulAlgorithm> found(engine::cuda::kMatmulCandidates);
  std::array<char, 512> error{};
  const int count = device.tables().matmul->candidates(shape, engine::kCudaWorkspaceBytes,
                                                       found.data(), error.data(), error.size());
  int fused = 0;
  for (int i = 0; i < count; ++i) fused += found[static_cast<size_t>(i)].fused ? 1 : 0;
  std::printf("%s\n", JsonObject()
                          .Add("product", engine::cuda::DescribeProduct(shape))
                          .Add("fused", fused)
                          .Add("plain", count - fused)
                          .Add("error", std::string(error.data()))
                          .Done()
                          .c_str());
}

}  // namespace

absl::Status ProbeProducts(int gpu) {
  LS_ASSIGN_OR_RETURN(const auto device, engine::cuda::Device::Open(gpu));
  for (const Type factors : {Type::kBF16, Type::kF16, Type::kF32}) {
    for (const MatmulShape& product : Products(factors)) {
      for (const MatmulShape& shape : WithWhatFollows(product)) Probe(*device, shape);
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::bench
