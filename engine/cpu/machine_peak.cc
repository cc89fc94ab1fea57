// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include "engine/cpu/arch.h"
#include "engine/cpu/isa.h"

namespace lockstep::engine {
namespace {

// Runs the loop once; returns the operations made, none on a CPU that cannot run it.
double RunOnce(Isa isa) { return CheckCpu().ok() ? RunFmaLoop(isa) : 0; }

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double MeasureFmaPeak() {
  const Isa isa = DetectIsa();
  double best = 0;
  for (int run = 0; run < 8; ++run) {
    const auto start = std::chrono::steady_clock::now();
    const double operations = RunOnce(isa);
    best = std::max(best, operations / SecondsSince(start));
  }
  return best;
}

double MeasureFmaThroughput(int threads) {
  constexpr double kSeconds = 0.25;
  const Isa isa = DetectIsa();
  std::latch started(threads + 1);
  std::vector<double> operations(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  running.reserve(static_cast<size_t>(threads));
  std::atomic<bool> stop{false};
  for (double& mine : operations) {
    running.emplace_back([&started, &stop, &mine, isa] {
      started.arrive_and_wait();
      while (!stop.load(std::memory_order_relaxed)) mine += RunOnce(isa);
    });
  }
  started.arrive_and_wait();
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& thread : running) thread.join();
  const double seconds = SecondsSince(start);
  double sum = 0;
  for (const double mine : operations) sum += mine;
  return sum / seconds;
}

double MeasureMemoryBandwidth() {
  // Past the largest caches of today's cores' share; small enough for any machine.
  constexpr size_t kFloats = size_t{16} << 20;
  const std::vector<float> from(kFloats, 1.0f);
  std::vector<float> to(kFloats, 0.0f);
  double best = 1e9;
  for (int run = 0; run < 4; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < kFloats; ++i) to[i] = from[i] * 1.5f;
    asm volatile("" : : "r"(to.data()) : "memory");
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return 2.0 * static_cast<double>(kFloats * sizeof(float)) / best;
}

}  // namespace lockstep::engine
