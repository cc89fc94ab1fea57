// SPDX-License-Identifier: Apache-2.0
// Times the training step, or with --inference the logits of a batch, of one of the models of the
// comparison with PyTorch, on one worker and made data: milliseconds a step, samples/s, the share
// of this machine's FMA peak, and with --ops what each kind of node of the plan takes.
//
//   bench_model NAME [--batch N] [--threads N] [--steps N] [--inference] [--precision P]
//               [--ops | --nodes] [--without PATTERN]...
//
// --precision is that of job files, such as bf16 (docs/precision.md). --without leaves one pattern
// of fusion out (docs/passes.md), such as heads.
//
// Prints a table, or with --json one object.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/batch.h"
#include "bench/model_specs.h"
#include "bench/node_times.h"
#include "bench/timing.h"
#include "engine/cpu/machine_peak.h"
#include "engine/exec/kernel_choice.h"
#include "engine/exec/plan.h"

namespace lockstep::engine {
namespace {

struct Options {
  std::string name;
  int64_t batch = 0;
  int threads = 1;
  int steps = 10;
  bool ops = false;
  bool nodes = false;
  bool json = false;
  bool inference = false;
  std::string precision = "fp32";
  FusionPatterns patterns;
};

struct Times {
  std::vector<double> shard, update, step;
};

// Steps with all their parts; the first tenth, and at least one, warms up.
Times RunSteps(const Plan& plan, Executor* executor, int steps) {
  const bench::Batch batch(plan.spec(), plan.spec().micro_batch);
  const auto count = plan.gradient_count();
  const auto gradients = bench::Allocate<float>(static_cast<size_t>(count));
  Times times;
  const int warm = std::max(1, steps / 10);
  for (int s = 1; s <= steps + warm; ++s) {
    const double t0 = bench::Now();
    if (!executor->RunShard(s, 0, 0, batch.fields(), gradients.get(), {}).ok()) std::abort();
    const double t1 = bench::Now();
    const GradientSlice whole{0, count, gradients.get()};
    executor->Update(s, absl::MakeConstSpan(&whole, 1)).value();
    const double t2 = bench::Now();
    if (s <= warm) continue;
    times.shard.push_back(t1 - t0);
    times.update.push_back(t2 - t1);
    times.step.push_back(t2 - t0);
  }
  return times;
}

Times RunInference(const Plan& plan, Executor* executor, int steps) {
  const bench::Batch batch(plan.spec(), plan.spec().eval_block);
  Times times;
  const int warm = std::max(1, steps / 10);
  for (int s = 1; s <= steps + warm; ++s) {
    const double start = bench::Now();
    if (!executor->Predict(batch.fields(), plan.spec().eval_block).ok()) std::abort();
    const double seconds = bench::Now() - start;
    if (s > warm) times.step.push_back(seconds);
  }
  times.shard = times.step;
  times.update = {0};
  return times;
}

void Report(const Options& options, const CompiledPlan& plan, const Times& times, double peak) {
  const double step = bench::Median(times.step);
  const double samples = static_cast<double>(plan.spec().micro_batch);
  const double flops = options.inference ? plan.evaluate().graph.Flops() : plan.flops();
  const double share = flops / step / peak;
  if (options.json) {
    std::printf(
        "{\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%.0f,\"threads\":%d,"
        "\"step_s\":%.6f,\"step_min_s\":%.6f,"
        "\"step_max_s\":%.6f,\"update_s\":%.6f,\"samples_per_second\":%.2f,\"flops\":%.0f,"
        "\"peak_gflops\":%.1f,\"of_peak\":%.3f}\n",
        options.name.c_str(), options.precision.c_str(), samples, options.threads, step,
        *std::min_element(times.step.begin(), times.step.end()),
        *std::max_element(times.step.begin(), times.step.end()), bench::Median(times.update),
        samples / step, flops, peak * 1e-9, share);
    return;
  }
  std::printf("%s, %s, batch %.0f, %.2f M parameters, arena %.0f MiB, FMA peak %.1f GFLOP/s\n",
              options.name.c_str(), options.precision.c_str(), samples,
              static_cast<double>(plan.parameter_count()) * 1e-6,
              static_cast<double>(plan.arena_bytes()) / 1048576, peak * 1e-9);
  std::printf(
      "step %.2f ms (%.2f - %.2f), of it the update %.2f ms; %.1f samples/s; %.1f GFLOP/s, "
      "%.1f %% of the peak\n",
      step * 1e3, *std::min_element(times.step.begin(), times.step.end()) * 1e3,
      *std::max_element(times.step.begin(), times.step.end()) * 1e3,
      bench::Median(times.update) * 1e3, samples / step, flops / step * 1e-9, share * 100);
}

int Run(const Options& options) {
  PinNumerics(options.threads);
  std::optional<TrainSpec> spec = bench::ModelSpecOf(options.name, options.batch, options.threads);
  if (!spec.has_value()) {
    std::fprintf(stderr, "no model is named %s: use one of %s\n", options.name.c_str(),
                 bench::ModelNames().c_str());
    return 2;
  }
  spec->inference = options.inference;
  spec->precision = options.precision;
  spec->passes.patterns = options.patterns;
  const auto plan = CompiledPlan::Make(*spec);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    return 1;
  }
  const auto state = bench::Allocate<char>((*plan)->state_bytes());
  const auto arena = bench::Allocate<char>((*plan)->arena_bytes());
  const auto executor = Executor::Create(*plan, {state.get(), arena.get()}).value();
  executor->InitState();
  double peak = MeasureFmaPeak() * options.threads;
  const Times times = options.inference ? RunInference(**plan, executor.get(), options.steps)
                                        : RunSteps(**plan, executor.get(), options.steps);
  peak = std::max(peak, MeasureFmaPeak() * options.threads);
  Report(options, **plan, times, peak);
  if (options.ops || options.nodes) {
    const bench::Batch batch(*spec, spec->micro_batch);
    bench::PrintNodeTimes(**plan, state.get(), arena.get(), batch.fields(), options.steps, peak,
                          options.nodes);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  lockstep::engine::MeasureKernels("");  // the quickest ones, as workers take them
  lockstep::engine::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::max(1, std::atoi(argv[++i])) : 1; };
    if (argument == "--batch") {
      options.batch = number();
    } else if (argument == "--threads") {
      options.threads = number();
    } else if (argument == "--steps") {
      options.steps = number();
    } else if (argument == "--ops") {
      options.ops = true;
    } else if (argument == "--nodes") {
      options.nodes = true;
    } else if (argument == "--without") {
      const std::string name = i + 1 < argc ? argv[++i] : "";
      const auto pattern = std::find_if(std::begin(lockstep::engine::kFusionPatterns),
                                        std::end(lockstep::engine::kFusionPatterns),
                                        [&](const auto& known) { return name == known.name; });
      if (pattern == std::end(lockstep::engine::kFusionPatterns)) {
        std::fprintf(stderr, "no pattern of fusion is named '%s'\n", name.c_str());
        return 2;
      }
      options.patterns.*pattern->on = false;
    } else if (argument == "--inference") {
      options.inference = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--precision") {
      options.precision = i + 1 < argc ? argv[++i] : "";
    } else {
      options.name = argument;
    }
  }
  return lockstep::engine::Run(options);
}
