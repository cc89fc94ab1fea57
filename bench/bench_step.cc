// SPDX-License-Identifier: Apache-2.0
// Times the training step of the MLP 784-256-10 on one worker: us/step, samples/s, GFLOP/s and the
// share of this machine's FMA peak, which is measured in the same run before and after. Also each
// part alone.
//
//   bench_step [batch] [threads] [steps]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/philox.h"
#include "engine/cpu/machine_peak.h"
#include "engine/engine.h"

namespace lockstep::engine {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
std::unique_ptr<void, Free> Allocate(size_t bytes) {
  return std::unique_ptr<void, Free>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
}

// Median, 10th and 90th percentile.
void Report(const char* what, std::vector<double> seconds, double samples, double flops,
            double peak) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double q) {
    return seconds[static_cast<size_t>(q * static_cast<double>(seconds.size() - 1))];
  };
  std::printf("%-14s %8.1f us (p10 %.1f, p90 %.1f)", what, at(0.5) * 1e6, at(0.1) * 1e6,
              at(0.9) * 1e6);
  if (flops > 0) {
    std::printf("  %9.0f samples/s  %6.1f GFLOP/s  %4.1f %% of peak", samples / at(0.5),
                flops / at(0.5) * 1e-9, flops / at(0.5) / peak * 100);
  }
  std::printf("\n");
}

int Run(int64_t batch, int threads, int steps) {
  PinNumerics(threads);
  TrainSpec spec;
  spec.model = MlpSpec{{256}};
  spec.input = ClassificationInput({784}, 10);
  spec.optimizer = SgdSpec{.lr = 0.01, .momentum = 0.9};
  spec.micro_batch = batch;
  spec.threads = threads;
  const auto plan = Plan::Compile(spec);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    return 1;
  }
  const auto state = Allocate((*plan)->state_bytes()), arena = Allocate((*plan)->arena_bytes());
  const auto executor = Executor::Create(*plan, {state.get(), arena.get()}).value();
  executor->InitState();
  const auto count = static_cast<size_t>((*plan)->gradient_count());
  const auto gradients = Allocate(count * sizeof(float));
  const auto inputs = Allocate(static_cast<size_t>(batch) * 784 * sizeof(float));
  std::vector<int32_t> labels(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch * 784; ++i) {
    static_cast<float*>(inputs.get())[i] =
        UniformFloat(static_cast<uint32_t>(MixBits(static_cast<uint64_t>(i)))) - 0.5f;
  }
  for (int64_t i = 0; i < batch; ++i) labels[static_cast<size_t>(i)] = static_cast<int32_t>(i % 10);

  const double peak_before = engine::MeasureFmaPeak() * threads;
  std::vector<double> shard, update, step;
  for (int64_t s = 1; s <= steps; ++s) {
    const double t0 = Now();
    const void* fields[] = {inputs.get(), labels.data()};
    const absl::Status status =
        executor->RunShard(s, 0, 0, fields, static_cast<float*>(gradients.get()), {});
    if (!status.ok()) return 1;
    const double t1 = Now();
    const GradientSlice whole{0, (*plan)->gradient_count(), static_cast<float*>(gradients.get())};
    executor->Update(s, absl::MakeConstSpan(&whole, 1)).value();
    const double t2 = Now();
    if (s <= steps / 10) continue;  // warm-up
    shard.push_back(t1 - t0);
    update.push_back(t2 - t1);
    step.push_back(t2 - t0);
  }
  const double peak = std::max(peak_before, engine::MeasureFmaPeak() * threads);
  std::printf("%s\nbatch %lld, %lld parameters, arena %zu KiB, FMA peak %.1f GFLOP/s\n",
              DescribeDevice((*plan)->kernels(), threads).c_str(), static_cast<long long>(batch),
              static_cast<long long>((*plan)->parameter_count()), (*plan)->arena_bytes() / 1024,
              peak * 1e-9);
  const double samples = static_cast<double>(batch);
  Report("step", step, samples, (*plan)->flops(), peak);
  Report("  shard", shard, samples, (*plan)->flops(), peak);
  Report("  update", update, samples, 0, peak);
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
  };
  return lockstep::engine::Run(argument(1, 64), argument(2, 1), std::max(10, argument(3, 2000)));
}
