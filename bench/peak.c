// SPDX-License-Identifier: Apache-2.0
// The machine's ceiling for fp32 arithmetic: fused multiply-adds on registers alone, with the
// widest vectors that the CPU has, on one thread and on all. Prints one JSON object:
//   {"isa":"avx2","threads":2,"gflops_one":114.1,"gflops_all":227.6,"scaling":1.99}
// scaling says how many whole cores the threads really get; benchmarks refuse a machine that shares
// its cores with others.
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kAccumulators = 12, kMaxThreads = 1024 };
static const double kSeconds = 0.25;

static atomic_int stop_flag;
static atomic_int ready;
static int wanted;
static double done_flop[kMaxThreads];
static volatile float sink;

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Twelve independent chains hide the latency of an FMA on two ports. Both return flop.
__attribute__((target("avx2,fma"))) static double RunAvx2(void) {
  __m256 sum[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm256_set1_ps((float)i);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  double rounds = 0;
  while (!atomic_load_explicit(&stop_flag, memory_order_relaxed)) {
    for (int n = 0; n < 4096; ++n) {
      for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    }
    rounds += 4096;
  }
  for (int i = 1; i < kAccumulators; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  sink = _mm256_cvtss_f32(sum[0]);
  return rounds * kAccumulators * 8 * 2;
}

__attribute__((target("avx512f"))) static double RunAvx512(void) {
  __m512 sum[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_set1_ps((float)i);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  double rounds = 0;
  while (!atomic_load_explicit(&stop_flag, memory_order_relaxed)) {
    for (int n = 0; n < 4096; ++n) {
      for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
    }
    rounds += 4096;
  }
  for (int i = 1; i < kAccumulators; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  sink = _mm512_cvtss_f32(sum[0]);
  return rounds * kAccumulators * 16 * 2;
}

static int avx512;

static void* Body(void* slot) {
  atomic_fetch_add(&ready, 1);
  while (atomic_load(&ready) < wanted) {
  }
  *(double*)slot = avx512 ? RunAvx512() : RunAvx2();
  return NULL;
}

// GFLOP/s of `threads` threads together; negative when a thread could not be started.
static double Measure(int threads) {
  pthread_t ids[kMaxThreads];
  atomic_store(&stop_flag, 0);
  atomic_store(&ready, 0);
  wanted = threads + 1;
  for (int i = 0; i < threads; ++i) {
    if (pthread_create(&ids[i], NULL, Body, &done_flop[i]) != 0) return -1;
  }
  while (atomic_load(&ready) < threads) {
  }
  const double start = Now();
  atomic_fetch_add(&ready, 1);
  const struct timespec pause = {0, (long)(kSeconds * 1e9)};
  nanosleep(&pause, NULL);
  atomic_store(&stop_flag, 1);
  double flop = 0;
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    flop += done_flop[i];
  }
  return flop / (Now() - start) / 1e9;
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (threads < 1 || threads > kMaxThreads) {
    fprintf(stderr, "usage: peak [THREADS]   1 to %d\n", kMaxThreads);
    return 2;
  }
  __builtin_cpu_init();
  avx512 = __builtin_cpu_supports("avx512f");
  if (!avx512 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) {
    fprintf(stderr, "peak: this CPU has neither AVX2 with FMA nor AVX-512\n");
    return 1;
  }
  Measure(threads);  // wakes the cores up
  const double one = Measure(1);
  const double all = Measure(threads);
  if (one < 0 || all < 0) {
    fprintf(stderr, "peak: cannot start %d threads\n", threads);
    return 1;
  }
  printf(
      "{\"isa\":\"%s\",\"threads\":%d,\"gflops_one\":%.1f,\"gflops_all\":%.1f,"
      "\"scaling\":%.3f}\n",
      avx512 ? "avx512f" : "avx2", threads, one, all, all / one);
  return 0;
}
