// SPDX-License-Identifier: Apache-2.0
// Times the update section for a model of many parameters against the memory's bandwidth, which is
// measured in the same run, in turn: the in-place scaling of an array of the same size as the
// state. The limit of an AdamW update is 28 bytes a parameter (gradient read; weight and two
// moments read and written) at that bandwidth.
//
//   bench_update [million parameters] [threads] [updates] [sgd|adamw|lamb] [clip norm] [ema decay]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "engine/cpu/simd/simd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/engine.h"

namespace lockstep::engine {
namespace {

struct Options {
  int64_t millions = 124;
  int threads = 1;
  int updates = 10;
  std::string optimizer = "adamw";
  double clip = 0;
  double ema = 0;
};

int64_t InputSize(const Options& options) {
  return std::max<int64_t>(1, options.millions * 1000000 / 4096 - 10);
}

TrainSpec SpecOf(const Options& options) {
  TrainSpec spec;
  // One hidden layer of 4,096: the parameters are nearly all in its matrix.
  spec.model = MlpSpec{{4096}};
  spec.input = ClassificationInput({InputSize(options)}, 10);
  if (options.optimizer == "adamw") spec.optimizer = AdamSpec{.decoupled = true};
  if (options.optimizer == "lamb") spec.optimizer = LambSpec{};
  if (options.optimizer == "sgd") spec.optimizer = SgdSpec{.lr = 0.01, .momentum = 0.9};
  spec.micro_batch = 1;
  spec.eval_block = 1;
  spec.threads = options.threads;
  spec.clip_norm = options.clip;
  spec.ema_decay = options.ema;
  return spec;
}

int Run(const Options& options) {
  PinNumerics(options.threads);
  const auto plan = Plan::Compile(SpecOf(options)).value();
  const auto state = bench::Allocate<char>(plan->state_bytes());
  const auto arena = bench::Allocate<char>(plan->arena_bytes());
  const auto count = static_cast<size_t>(plan->gradient_count());
  const auto gradients = bench::Allocate<float>(count);
  const auto executor = Executor::Create(plan, {state.get(), arena.get()}).value();
  executor->InitState();
  // One sample's loss and count of targets, then gradients of one size.
  const std::vector<float> input(static_cast<size_t>(InputSize(options)), 0.5f);
  const int32_t label = 1;
  const std::array<const void*, 2> fields{input.data(), &label};
  if (!executor->RunShard(1, 0, 0, fields, gradients.get(), {}).ok()) return 1;
  std::fill_n(gradients.get(), plan->TailBegin(), 1e-4f);
  const GradientSlice whole{0, plan->gradient_count(), gradients.get()};

  const size_t elements = plan->state_bytes() / sizeof(float);
  const auto scaled = bench::Allocate<float>(elements);
  std::fill_n(scaled.get(), elements, 1.0f);
  const SimdKernels& simd = SimdFor(DetectIsa());
  ThreadPool pool(options.threads);
  std::vector<double> update, scale;
  for (int i = 0; i <= options.updates; ++i) {
    const double t0 = bench::Now();
    pool.Run([&](int part) {
      const auto [begin, end] = PartOf(static_cast<int64_t>(elements), part, pool.threads());
      simd.scale(scaled.get() + begin, 1.0f, end - begin, false, scaled.get() + begin);
    });
    const double t1 = bench::Now();
    if (executor->Update(i + 1, absl::MakeConstSpan(&whole, 1)).value().skipped) return 1;
    const double t2 = bench::Now();
    if (i == 0) continue;  // warm-up
    scale.push_back(t1 - t0);
    update.push_back(t2 - t1);
  }
  const double bandwidth =
      2.0 * static_cast<double>(elements * sizeof(float)) / bench::Median(scale);
  // Of the update's own passes over memory: the gradient once, the rest read and written.
  const double bytes =
      4.0 * static_cast<double>(count) + 2.0 * static_cast<double>(plan->state_bytes());
  std::printf(
      "%s\n%s, %.1f M parameters: update %.1f ms; in-place bandwidth %.1f GB/s; limit %.1f ms; "
      "%.2f x the limit\n",
      DescribeDevice(plan->kernels(), options.threads).c_str(), options.optimizer.c_str(),
      static_cast<double>(plan->parameter_count()) * 1e-6, bench::Median(update) * 1e3,
      bandwidth * 1e-9, bytes / bandwidth * 1e3, bench::Median(update) * bandwidth / bytes);
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  lockstep::engine::Options options;
  if (argc > 1) options.millions = std::max(1, std::atoi(argv[1]));
  if (argc > 2) options.threads = std::max(1, std::atoi(argv[2]));
  if (argc > 3) options.updates = std::max(1, std::atoi(argv[3]));
  if (argc > 4) options.optimizer = argv[4];
  if (argc > 5) options.clip = std::atof(argv[5]);
  if (argc > 6) options.ema = std::atof(argv[6]);
  return lockstep::engine::Run(options);
}
