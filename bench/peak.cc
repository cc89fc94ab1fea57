// SPDX-License-Identifier: Apache-2.0
// The machine's ceiling for fp32 arithmetic, on one thread and on all. Prints one JSON object:
//   {"isa":"avx2","threads":2,"gflops_one":114.1,"gflops_all":227.6,"scaling":1.99}
// scaling says how many whole cores the threads really get; benchmarks refuse a machine that shares
// its cores with others.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/cpu/isa.h"
#include "engine/cpu/machine_peak.h"

int main(int argc, char** argv) {
  constexpr int kMaxThreads = 1024;
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  if (threads < 1 || threads > kMaxThreads) {
    std::fprintf(stderr, "usage: peak [THREADS]   1 to %d\n", kMaxThreads);
    return 2;
  }
  const lockstep::engine::Isa isa = lockstep::engine::DetectIsa();
  lockstep::engine::MeasureFmaThroughput(threads);  // wakes the cores up
  const double one = lockstep::engine::MeasureFmaThroughput(1) / 1e9;
  const double all = lockstep::engine::MeasureFmaThroughput(threads) / 1e9;
  std::printf(
      "{\"isa\":\"%s\",\"threads\":%d,\"gflops_one\":%.1f,\"gflops_all\":%.1f,\"scaling\":%.3f}\n",
      lockstep::engine::Name(isa), threads, one, all, all / one);
  return 0;
}
