// SPDX-License-Identifier: Apache-2.0
// Times the products that one token of GPT-2 (124M) takes, one after the other over all layers, so
// that weights come from memory, against reading as many bytes in one stream, in turn: what few
// rows cost beyond the reading of their weights. They are packed, as a decode program has them, or
// read where they lie. With the kernels that a worker takes: the quickest of this CPU, or those
// that LOCKSTEP_ISA names.
//
//   bench_few_rows [rounds]
//
// Prints for 1, 2, 4 and 8 rows, fp32 and bf16, one and two threads the bytes/s of all three by the
// least wall time of all rounds, the shares of the products in the stream, and the same shares by
// processor time, which other processes disturb less.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "bench/timing.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/isa.h"
#include "engine/exec/kernel_choice.h"

namespace lockstep::engine {
namespace {

constexpr int kLayers = 12;
constexpr GemmShape kLayer[] = {
    {.n = 2304, .k = 768}, {.n = 768, .k = 768}, {.n = 3072, .k = 768}, {.n = 768, .k = 3072}};
constexpr GemmShape kHead = {.n = 50257, .k = 768, .b_transposed = true};

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The least wall and processor seconds of the runs so far.
struct Least {
  double wall = std::numeric_limits<double>::infinity();
  double processor = wall;

  template <typename Work>
  void Time(const Work& work) {
    const double processor_start = ProcessorSeconds(), start = bench::Now();
    work();
    wall = std::min(wall, bench::Now() - start);
    processor = std::min(processor, ProcessorSeconds() - processor_start);
  }
};

__attribute__((target("avx2"))) void Read(const std::byte* from, int64_t bytes) {
  __m256i sums[8] = {};
  for (int64_t at = 0; at + 256 <= bytes; at += 256) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const auto* place = reinterpret_cast<const __m256i*>(from + at + 32 * i);
      sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(place));
    }
  }
  for (const __m256i& sum : sums) asm volatile("" : : "x"(sum));
}

class Token {
 public:
  Token(int64_t rows, bool bf16, Isa isa, int threads) : each_(bf16 ? 2 : 4), pool_(threads) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const GemmShape& shape : kLayer) Add(shape, rows, bf16, isa, threads);
    }
    Add(kHead, rows, bf16, isa, threads);
    weights_ = bench::Allocate<std::byte>(static_cast<size_t>(bytes_));
    auto* const halves = reinterpret_cast<uint16_t*>(weights_.get());
    for (int64_t i = 0; i < bytes_ / 2; ++i) halves[i] = static_cast<uint16_t>(0x3c00 + i % 251);
    a_ = bench::Allocate<float>(static_cast<size_t>(rows * 3072));
    c_ = bench::Allocate<float>(static_cast<size_t>(rows * 50257));
    scratch_ = bench::Allocate<float>(static_cast<size_t>(scratch_bytes_ / 4 + 16));
    packed_ = bench::Allocate<float>(static_cast<size_t>(packed_floats_));
    std::fill_n(a_.get(), rows * 3072, 0.25f);
    std::fill_n(c_.get(), rows * 50257, 0.0f);
    const std::byte* b = weights_.get();
    float* packed = packed_.get();
    for (const auto& [gemm, count] : products_) {
      gemm.PackAll(b, packed, nullptr, &pool_);
      b += count * each_;
      packed += gemm.packed_bytes() / 4;
    }
  }
  int64_t bytes() const { return bytes_; }

  void Multiply() {
    const std::byte* b = weights_.get();
    for (const auto& [gemm, count] : products_) {
      gemm.Run(a_.get(), b, c_.get(), false, {}, scratch_.get(), &pool_);
      b += count * each_;
    }
  }
  void MultiplyPacked() {
    const float* packed = packed_.get();
    for (const Product& product : products_) {
      product.gemm.RunPacked(a_.get(), packed, c_.get(), false, {}, scratch_.get(), &pool_);
      packed += product.gemm.packed_bytes() / 4;
    }
  }
  void Stream() {
    pool_.Run([&](int index) {
      const auto [begin, end] = PartOf(bytes_ / 4096, index, pool_.threads());
      Read(weights_.get() + begin * 4096, (end - begin) * 4096);
    });
  }

 private:
  struct Product {
    Gemm gemm;
    int64_t count;
  };
  void Add(GemmShape shape, int64_t rows, bool bf16, Isa isa, int threads) {
    shape.m = rows;
    shape.bf16 = bf16;
    products_.push_back({Gemm(shape, isa, threads), shape.n * shape.k});
    bytes_ += shape.n * shape.k * each_;
    packed_floats_ += static_cast<int64_t>(products_.back().gemm.packed_bytes() / 4);
    scratch_bytes_ = std::max(scratch_bytes_, products_.back().gemm.scratch_bytes());
  }

  const int64_t each_;
  ThreadPool pool_;
  std::vector<Product> products_;
  int64_t bytes_ = 0;
  int64_t packed_floats_ = 0;
  size_t scratch_bytes_ = 0;
  bench::Memory<std::byte> weights_;
  bench::Memory<float> packed_, a_, c_, scratch_;
};

int Run(int rounds) {
  MeasureKernels("");
  const absl::StatusOr<KernelChoices> choices = ChooseKernels("");
  if (!choices.ok()) {
    std::fprintf(stderr, "%s\n", choices.status().ToString().c_str());
    return 2;
  }
  const CpuTargets targets = choices->Targets(1, std::nullopt);
  const Isa isas[] = {targets[OpClass::kProducts].isa, targets[OpClass::kBf16Products].isa};
  std::printf("fp32 %s, bf16 %s; 124M weights a token, GB/s\n", Name(isas[0]), Name(isas[1]));
  for (const int threads : {1, 2}) {
    for (const bool bf16 : {false, true}) {
      for (const int64_t rows : {1, 2, 4, 8}) {
        Token token(rows, bf16, isas[bf16 ? 1 : 0], threads);
        Least packed, products, stream;
        for (int round = 0; round < rounds; ++round) {
          packed.Time([&] { token.MultiplyPacked(); });
          products.Time([&] { token.Multiply(); });
          stream.Time([&] { token.Stream(); });
        }
        const double bytes = static_cast<double>(token.bytes()) * 1e-9;
        std::printf(
            "%d thread%s %s %lld row%s  packed %5.1f  as they lie %5.1f  stream %5.1f  %3.0f %% "
            "and "
            "%3.0f %%, by processor time %3.0f %% and %3.0f %%\n",
            threads, threads == 1 ? " " : "s", bf16 ? "bf16" : "fp32", static_cast<long long>(rows),
            rows == 1 ? " " : "s", bytes / packed.wall, bytes / products.wall, bytes / stream.wall,
            100 * stream.wall / packed.wall, 100 * stream.wall / products.wall,
            100 * stream.processor / packed.processor, 100 * stream.processor / products.processor);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  return lockstep::engine::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 7);
}
