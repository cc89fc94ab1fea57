// SPDX-License-Identifier: Apache-2.0
// Times the training step, or with --inference the logits of a batch, of a model on a GPU: one
// worker, one shard, made data. A step is forward, backward and update. Prints one object of JSON:
// seconds of a step, what of it the device was idle, memory.
//
//   bench_device NAME [--batch N] [--precision P] [--steps N] [--warm N] [--inference]
//                [--tuning FILE] [--profile] [--gpu N]
//   bench_device --gpus
//   bench_device --probe
//   bench_device NAME --roofline GPU [--batch N] [--precision P] [--inference]
//
// --profile times each kind of node by itself as well, without graphs. --gpus only lists the GPUs
// that CUDA shows. --probe only asks cuBLASLt what it has for the products of the large models.
// --roofline says what a GPU needs on paper, and needs none.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/batch.h"
#include "bench/model_specs.h"
#include "bench/product_probe.h"
#include "bench/timing.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/gpu_roofline.h"
#include "engine/cuda/module.h"
#include "engine/exec/plan.h"

namespace lockstep::engine {
namespace {

struct Options {
  std::string name;
  int64_t batch = 0;
  std::string precision = "bf16";
  int steps = 20;
  int warm = 6;  // a program runs twice from each of two slots before all of it is recorded
  bool inference = false;
  bool profile = false;
  bool gpus = false;
  bool probe = false;
  std::string tuning;
  std::string roofline;
  int gpu = 0;
};

// Time by kind of node, each waited for: without overlap and with the cost of a launch.
class NodeClock : public NodeObserver {
 public:
  explicit NodeClock(const Plan& plan) {
    for (const NodeInfo& node : plan.Nodes(ProgramKind::kTraining)) {
      names_.push_back(absl::StrCat(node.op, " ", absl::StrJoin(node.shapes, " ")));
    }
  }
  bool reads_outputs() const override { return false; }
  void BeforeNode(ProgramKind, int) override { start_ = bench::Now(); }
  absl::Status AfterNode(ProgramKind, int node, absl::Span<const TensorView>) override {
    seconds_[names_[static_cast<size_t>(node)]] += bench::Now() - start_;
    return absl::OkStatus();
  }
  void Print() const {
    std::vector<std::pair<double, std::string>> rows;
    for (const auto& [name, seconds] : seconds_) rows.emplace_back(seconds, name);
    std::sort(rows.rbegin(), rows.rend());
    for (const auto& [seconds, name] : rows) {
      std::fprintf(stderr, "%10.3f ms  %s\n", seconds * 1e3, name.c_str());
    }
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, double> seconds_;
  double start_ = 0;
};

struct Times {
  std::vector<double> step, idle_ms, programs_ms, update_ms;
  double loss = 0;
};

absl::Status RunSteps(const Plan& plan, Executor* executor, const Options& options, Times* times) {
  bench::Batch batch(plan.spec(), plan.spec().micro_batch);
  batch.Lock(executor);
  const int64_t count = plan.gradient_count();
  const auto gradients = bench::Allocate<float>(static_cast<size_t>(count));
  Executor::Hooks hooks;
  int step = 1;
  // As a worker: gradients stay on the device, and the next batch comes while it computes.
  hooks.before_gradients = [&] { return executor->StageAhead(step + 1, 0, 0, batch.fields()); };
  double before = 0;
  for (int s = 1; s <= options.steps + options.warm + 1; ++s) {
    step = s;
    LS_RETURN_IF_ERROR(executor->RunShard(s, 0, 0, batch.fields(), gradients.get(), hooks));
    const GradientSlice whole{0, count, gradients.get()};
    LS_ASSIGN_OR_RETURN(const StepResult updated,
                        executor->Update(s, absl::MakeConstSpan(&whole, 1)));
    times->loss = updated.loss;
    // An update ends when the host has looked at the gradients: a step lasts from one to the next.
    const double now = bench::Now();
    if (s > options.warm + 1) {
      const DeviceTimes device = executor->device_times();
      times->step.push_back(now - before);
      times->programs_ms.push_back(device.programs);
      times->update_ms.push_back(device.update);
      times->idle_ms.push_back(device.idle);
    }
    before = now;
  }
  return absl::OkStatus();
}

absl::Status RunInference(const Plan& plan, Executor* executor, const Options& options,
                          Times* times) {
  bench::Batch batch(plan.spec(), plan.spec().eval_block);
  batch.Lock(executor);
  for (int s = 0; s < options.steps + options.warm; ++s) {
    const double start = bench::Now();
    const auto logits = executor->Predict(batch.fields(), plan.spec().eval_block);
    if (!logits.ok()) return logits.status();
    if (s >= options.warm) times->step.push_back(bench::Now() - start);
  }
  times->idle_ms = times->programs_ms = times->update_ms = {0};
  return absl::OkStatus();
}

size_t FreeBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  const auto tables = cuda::LoadModule();
  if (tables.ok()) (*tables)->runtime->memory(&free_bytes, &total_bytes);
  return free_bytes;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return absl::IsResourceExhausted(status) ? 5 : 1;
}

// {"gpus": [{"uuid": ..., "name": ...}]}, in CUDA's order.
absl::Status PrintGpus() {
  LS_ASSIGN_OR_RETURN(const std::vector<cuda::DeviceProperties> devices, cuda::ListDevices());
  const std::string gpus = JsonArrayOf(devices, [](const cuda::DeviceProperties& device) {
    return JsonObject()
        .Add("uuid", std::string(device.uuid))
        .Add("name", std::string(device.name))
        .Done();
  });
  std::printf("%s\n", JsonObject().Raw("gpus", gpus).Done().c_str());
  return absl::OkStatus();
}

// The libraries that a run had: without cuDNN other engines do the work.
std::string Libraries() {
  const auto tables = cuda::LoadModule();
  if (!tables.ok()) return "";
  const auto cudnn = cuda::LoadCudnn(*tables);
  return JsonObject()
      .Add("products", (*tables)->matmul->version())
      .Add("cudnn", cudnn.ok() ? cudnn->name() : "none")
      .Add("cudnn_path", cudnn.ok() ? cudnn->path : "")
      .Add("module", (*tables)->name)
      .Done();
}

// Which engines do how many nodes.
std::string Engines(const Executor& executor) {
  JsonObject object;
  for (const auto& [what, count] : executor.engines()) object.Add(what, count);
  return object.Done();
}

void Print(const Options& options, const CompiledPlan& plan, const Executor& executor,
           const Times& times, double prepare_s, size_t device_bytes) {
  const double step = bench::Median(times.step);
  const double idle = bench::Median(times.idle_ms);
  std::printf(
      "{\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%lld,\"inference\":%s,\"step_s\":%.6f,"
      "\"step_min_s\":%.6f,\"step_max_s\":%.6f,\"samples_per_second\":%.2f,\"programs_ms\":%.3f,"
      "\"update_ms\":%.3f,\"idle_ms\":%.4f,\"idle_share\":%.5f,\"parameters\":%lld,"
      "\"flops\":%.6e,\"prepare_s\":%.1f,\"device_bytes\":%zu,\"arena_bytes\":%zu,"
      "\"state_bytes\":%zu,\"loss\":%s,\"libraries\":%s,\"engines\":%s}\n",
      options.name.c_str(), options.precision.c_str(),
      static_cast<long long>(plan.spec().micro_batch), options.inference ? "true" : "false", step,
      *std::min_element(times.step.begin(), times.step.end()),
      *std::max_element(times.step.begin(), times.step.end()),
      static_cast<double>(plan.spec().micro_batch) / step, bench::Median(times.programs_ms),
      bench::Median(times.update_ms), idle, idle * 1e-3 / step,
      static_cast<long long>(plan.parameter_count()),
      options.inference ? plan.evaluate().graph.Flops() : plan.flops(), prepare_s, device_bytes,
      plan.arena_bytes(), plan.state_bytes(), JsonNumber(times.loss).c_str(), Libraries().c_str(),
      Engines(executor).c_str());
}

int Run(const Options& options) {
  PinNumerics(1);
  std::optional<TrainSpec> spec = bench::ModelSpecOf(options.name, options.batch, 1);
  if (!spec.has_value()) {
    std::fprintf(stderr, "no model is named %s: use one of %s\n", options.name.c_str(),
                 bench::ModelNames().c_str());
    return 2;
  }
  spec->device = DeviceKind::kCuda;
  spec->inference = options.inference;
  spec->precision = options.precision;
  // An evaluation is not timed: its block has one sample.
  if (!options.inference) spec->eval_block = 1;
  const auto plan = CompiledPlan::Make(*spec);
  if (!plan.ok()) return Fail(plan.status());
  if (!options.roofline.empty()) {
    const absl::StatusOr<GpuFigures> gpu = GpuFiguresOf(options.roofline);
    if (!gpu.ok()) return Fail(gpu.status());
    std::fputs(RooflineText(RooflineOf(**plan, *gpu), *gpu).c_str(), stdout);
    return 0;
  }
  const auto state = bench::Allocate<char>((*plan)->state_bytes());
  Memory memory{state.get(), nullptr, options.gpu};
  if (!options.tuning.empty()) memory.tuning_files = {options.tuning};
  const double start = bench::Now();
  const size_t before = FreeBytes();
  const auto executor = Executor::Create(*plan, memory);
  if (!executor.ok()) return Fail(executor.status());
  const size_t device_bytes = before - std::min(before, FreeBytes());
  const double prepare_s = bench::Now() - start;
  (*executor)->InitState();
  Times times;
  const absl::Status ran = options.inference
                               ? RunInference(**plan, executor->get(), options, &times)
                               : RunSteps(**plan, executor->get(), options, &times);
  if (!ran.ok()) return Fail(ran);
  Print(options, **plan, **executor, times, prepare_s, device_bytes);
  if (!options.profile || options.inference) return 0;
  NodeClock clock(**plan);
  (*executor)->Observe(&clock);
  const bench::Batch batch(*spec, spec->micro_batch);
  const auto gradients = bench::Allocate<float>(static_cast<size_t>((*plan)->gradient_count()));
  const absl::Status seen = (*executor)->RunShard(1000, 0, 0, batch.fields(), gradients.get(), {});
  clock.Print();
  return seen.ok() ? 0 : Fail(seen);
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  lockstep::engine::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto text = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    const auto number = [&] { return std::max(0, std::atoi(text().c_str())); };
    if (argument == "--batch") {
      options.batch = number();
    } else if (argument == "--precision") {
      options.precision = text();
    } else if (argument == "--steps") {
      options.steps = std::max(1, number());
    } else if (argument == "--warm") {
      options.warm = std::max(1, number());
    } else if (argument == "--tuning") {
      options.tuning = text();
    } else if (argument == "--gpu") {
      options.gpu = number();
    } else if (argument == "--roofline") {
      options.roofline = text();
    } else if (argument == "--inference") {
      options.inference = true;
    } else if (argument == "--profile") {
      options.profile = true;
    } else if (argument == "--gpus") {
      options.gpus = true;
    } else if (argument == "--probe") {
      options.probe = true;
    } else {
      options.name = argument;
    }
  }
  if (options.gpus || options.probe) {
    const absl::Status asked =
        options.gpus ? lockstep::engine::PrintGpus() : lockstep::bench::ProbeProducts(options.gpu);
    return asked.ok() ? 0 : lockstep::engine::Fail(asked);
  }
  return lockstep::engine::Run(options);
}
