// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/job_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/communicator.h"
#include "collectives/shards.h"
#include "common/available_cpus.h"
#include "common/json.h"
#include "engine/cpu/machine_peak.h"
#include "job/meaning/workers.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/memory_need.h"
#include "worker/state/shard_holders.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

// The roofline of one micro-batch: each node takes the longer of its arithmetic and its traffic.
double MicroBatchSeconds(const engine::Plan& plan, const MachineSpeed& machine) {
  const int threads = plan.spec().threads;
  double seconds = 0;
  for (const engine::NodeInfo& node : plan.Nodes(engine::ProgramKind::kTraining)) {
    seconds += std::max(node.flops / (machine.flops * threads), node.bytes / machine.bytes);
  }
  return seconds;
}

// Bytes that `rank` takes from others in one reduction: every other rank's nodes of its slice, then
// the sums of the other slices.
double BytesIn(int shards, int world, int rank, int64_t count) {
  const ElementRange own = SliceOf(count, world, rank);
  double bytes = 0;
  for (int other = 0; other < world; ++other) {
    if (other == rank) continue;
    const auto nodes = WholeNodes(shards, DealShards(shards, world, other)).size();
    const ElementRange slice = SliceOf(count, world, other);
    bytes += static_cast<double>(nodes) * static_cast<double>(own.end - own.begin) * 4;
    bytes += static_cast<double>(slice.end - slice.begin) * 4;
  }
  return bytes;
}

std::string Count(double value) {
  const char* units[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  while (value >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.2f%s", value, units[unit]);
}

std::string Seconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.2f s", seconds);
}

// Returns what zero_stage means for this job.
std::string Sharding(const CompiledJob& compiled) {
  if (compiled.job.train().zero_stage() == 0) return "";
  const int least = LeastWorkers(compiled.job);
  if (!compiled.plan->spec().shard_moments || least < 3) {
    return absl::StrCat(" (zero_stage 1 spares nothing: the job goes on with ", least,
                        least == 1 ? " worker" : " workers", ", and two have everything)");
  }
  const int shards = OptimizerShards(MostWorkers(compiled.job));
  return absl::StrCat(" (zero_stage 1: ", MostHeldParts(compiled.job), " of ", shards,
                      " parts of the moments with ", least, " workers, the fewest)");
}

std::string LaunchJson(const engine::RooflineRow& row) {
  JsonObject object;
  object.Add("op", row.op);
  if (!row.name.empty()) object.Add("name", row.name);
  if (row.once) object.Add("once", true);
  object.Add("launches", row.launches).Add("flops", row.flops);
  object.Add("least_bytes", row.least_bytes).Add("moved_bytes", row.moved_bytes);
  object.Add("least_seconds", row.least_seconds).Add("seconds", row.seconds);
  return object.Done();
}

std::string RooflineJson(const GpuEstimate& gpu) {
  JsonObject object;
  object.Add("gpu", gpu.figures.name).Add("architecture", gpu.figures.architecture);
  object.Add("half_flops_per_second", gpu.figures.half_flops);
  object.Add("tf32_flops_per_second", gpu.figures.tf32_flops);
  object.Add("flops_per_second", gpu.figures.float_flops);
  object.Add("bytes_per_second", gpu.figures.bytes);
  object.Add("product_share", engine::kProductShare).Add("memory_share", engine::kMemoryShare);
  object.Add("least_seconds", gpu.roofline.least_seconds).Add("seconds", gpu.roofline.seconds);
  object.Raw("kinds", JsonArrayOf(gpu.roofline.rows, LaunchJson));
  return object.Raw("launches", JsonArrayOf(gpu.roofline.launches, LaunchJson)).Done();
}

std::string GpuLines(const JobReport& report) {
  const GpuNeed& gpu = report.need.gpu;
  if (gpu.total() == 0) return "";
  const auto bytes = [](size_t value) { return BytesText(static_cast<double>(value)); };
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-14s%s\n", name, value);
  };
  line("GPU memory",
       absl::StrCat(
           bytes(gpu.total()), " in each worker",
           report.gpu_limit > 0
               ? absl::StrCat(" of ", bytes(static_cast<size_t>(report.gpu_limit)), " allowed")
               : ""));
  line("  plan", absl::StrCat(bytes(gpu.plan), report.offload));
  if (report.left_constants_out) {
    line("  copies",
         "no room for copies of weights in 16 bits: each product makes its own, bit for "
         "bit the same");
  }
  if (gpu.vectors > 0) {
    line("  gradients", absl::StrCat(bytes(gpu.vectors), ", which NCCL reduces there"));
  }
  return text;
}

// All of a job's report but for what times are estimated from, and the times.
JobReport Unestimated(const CompiledJob& compiled, int64_t dataset_size) {
  const engine::Plan& plan = *compiled.plan;
  const Resources& resources = compiled.job.resources();
  JobReport report;
  report.name = compiled.job.name();
  report.device = engine::DescribeDevice(plan.kernels(), plan.spec().threads);
  report.plan_hash = plan.hash();
  report.parameters = plan.parameter_count();
  report.dataset_size = dataset_size;
  report.total_steps = compiled.total_steps;
  report.warnings = WarningsOf(compiled);
  report.micro_batch = plan.spec().micro_batch;
  report.accumulate = plan.spec().accumulate;
  report.memory_limit = resources.memory();
  report.gpu_limit = resources.gpu_memory();
  report.need = compiled.need;
  report.precision = plan.spec().precision;
  report.fp8 = plan.spec().fp8;
  report.recompute_level = plan.recompute_level();
  report.arena_bytes = plan.arena_bytes();
  report.without_recompute = plan.arena_bytes();
  if (report.recompute_level > 0) {
    engine::TrainSpec spec = plan.spec();
    spec.recompute = {};
    const auto whole = engine::Plan::Compile(spec);
    if (whole.ok()) report.without_recompute = (*whole)->arena_bytes();
  }
  report.keeps_constants = plan.keeps_constants();
  report.left_constants_out =
      !plan.spec().passes.keep_constants && !compiled.job.train().passes().has_keep_constants();
  report.sharding = Sharding(compiled);
  if (plan.spec().offload_moments) {
    report.offload = " (the optimizer's moments stay in the host's memory)";
  }
  const int shards = compiled.job.train().shards();
  const int world = job::WantedWorkers(compiled.job);
  if (job::IsUncounted(compiled.job)) {
    report.warnings.push_back(
        absl::StrCat("how many workers there are is not counted here: planned for ", world,
                     world == 1 ? " worker" : " workers", "; say --nproc-per-node=N"));
  }
  for (int rank = 0; rank < world; ++rank) {
    RankCost cost;
    cost.rank = rank;
    cost.shards = DealShards(shards, world, rank).size();
    const double micros = static_cast<double>(cost.shards) * plan.spec().accumulate;
    cost.flops = plan.flops() * micros;
    cost.bytes_in = BytesIn(shards, world, rank, compiled.vector_count);
    report.flops += cost.flops;
    report.ranks.push_back(cost);
  }
  return report;
}

}  // namespace

MachineSpeed MeasureMachine() {
  MachineSpeed machine;
  machine.flops = engine::MeasureFmaPeak();
  machine.bytes = engine::MeasureMemoryBandwidth();
  machine.cpus = AvailableCpus();
  return machine;
}

JobReport ReportOf(const CompiledJob& compiled, int64_t dataset_size, const MachineSpeed& machine) {
  const engine::Plan& plan = *compiled.plan;
  JobReport report = Unestimated(compiled, dataset_size);
  report.machine = machine;
  // More threads than cores share them.
  const int here = std::max(1, compiled.job.resources().nproc_per_node());
  const double crowd =
      std::max(1.0, static_cast<double>(here) * plan.spec().threads / machine.cpus);
  const double micro = MicroBatchSeconds(plan, machine);
  // The update reads gradients and state and writes the state.
  const double update = (static_cast<double>(compiled.vector_count) * 4 +
                         2.0 * static_cast<double>(plan.state_bytes())) /
                        machine.bytes;
  for (RankCost& cost : report.ranks) {
    const double micros = static_cast<double>(cost.shards) * plan.spec().accumulate;
    cost.step_seconds = crowd * (micro * micros + cost.bytes_in / machine.bytes + update);
  }
  return report;
}

JobReport ReportOf(const CompiledJob& compiled, int64_t dataset_size,
                   const engine::GpuFigures& gpu) {
  const engine::Plan& plan = *compiled.plan;
  JobReport report = Unestimated(compiled, dataset_size);
  report.gpu = GpuEstimate{gpu, engine::RooflineOf(plan, gpu)};
  for (RankCost& cost : report.ranks) {
    const double micros = static_cast<double>(cost.shards) * plan.spec().accumulate;
    cost.step_seconds = report.gpu->roofline.StepSeconds(micros);
  }
  return report;
}

std::string ReportText(const JobReport& report) {
  const MemoryNeed& need = report.need;
  const auto bytes = [](size_t value) { return BytesText(static_cast<double>(value)); };
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-14s%s\n", name, value);
  };
  line("job", report.name);
  line("parameters", Count(static_cast<double>(report.parameters)));
  line("samples", absl::StrCat(report.dataset_size, ", ", report.total_steps, " steps of ",
                               report.ranks.size(), " ranks, micro-batches of ", report.micro_batch,
                               " x ", report.accumulate));
  for (const std::string& warning : report.warnings) line("warning", warning);
  line("memory",
       absl::StrCat(bytes(need.total()), " in each worker",
                    report.memory_limit > 0
                        ? absl::StrCat(" of ", BytesText(static_cast<double>(report.memory_limit)),
                                       " allowed")
                        : ""));
  line("  weights", bytes(need.weights));
  line("  gradients", bytes(need.gradients));
  line("  optimizer", absl::StrCat(bytes(need.optimizer), report.sharding));
  line("  activations", bytes(need.activations));
  line("  workspace", bytes(need.workspace));
  line("  data", bytes(need.data));
  if (need.checkpoint > 0) line("  checkpoint", bytes(need.checkpoint));
  text += GpuLines(report);
  line("precision",
       absl::StrCat(report.precision,
                    report.fp8 ? ", linear layers but the first and last in fp8" : ""));
  if (report.recompute_level > 0) {
    line("recompute", absl::StrCat(report.recompute_level == 1
                                       ? "what is cheap"
                                       : absl::StrCat("what is cheap, and ",
                                                      report.recompute_level - 1, " whole blocks"),
                                   ": activations and workspace take ", bytes(report.arena_bytes),
                                   " instead of ", bytes(report.without_recompute)));
  }
  line("arithmetic", absl::StrCat(Count(report.flops), "FLOP a step"));
  if (!report.gpu.has_value()) {
    line("machine", absl::StrFormat("%sFLOP/s and %s/s on one thread, %d CPUs (measured just now)",
                                    Count(report.machine.flops), BytesText(report.machine.bytes),
                                    report.machine.cpus));
  }
  absl::StrAppendFormat(&text, "\n%-6s%-8s%-14s%-18s%s\n", "RANK", "SHARDS", "FLOP/STEP",
                        "RECEIVED/STEP", "STEP (ESTIMATE)");
  double slowest = 0;
  for (const RankCost& rank : report.ranks) {
    slowest = std::max(slowest, rank.step_seconds);
    absl::StrAppendFormat(&text, "%-6d%-8d%-14s%-18s%s\n", rank.rank, rank.shards,
                          Count(rank.flops), BytesText(rank.bytes_in), Seconds(rank.step_seconds));
  }
  absl::StrAppend(&text, "\nAbout ", Seconds(slowest * static_cast<double>(report.total_steps)),
                  " for all steps at the least: an estimate from the ",
                  report.gpu.has_value() ? "figures of that GPU, without what GPUs send each other"
                                         : "measured peaks of this machine",
                  ", not a run.\n");
  if (report.gpu.has_value()) {
    absl::StrAppend(&text, "\n", engine::RooflineText(report.gpu->roofline, report.gpu->figures));
  }
  return text;
}

std::string ReportJson(const JobReport& report) {
  const auto rank_json = [](const RankCost& rank) {
    return JsonObject()
        .Add("rank", rank.rank)
        .Add("shards", rank.shards)
        .Add("flops", rank.flops)
        .Add("bytes_received", rank.bytes_in)
        .Add("step_seconds_estimate", rank.step_seconds)
        .Done();
  };
  const MemoryNeed& need = report.need;
  JsonObject memory;
  memory.Add("total", need.total()).Add("weights", need.weights).Add("gradients", need.gradients);
  memory.Add("optimizer", need.optimizer).Add("activations", need.activations);
  memory.Add("workspace", need.workspace).Add("data", need.data).Add("checkpoint", need.checkpoint);
  memory.Add("without_recompute", report.without_recompute).Add("limit", report.memory_limit);
  JsonObject gpu;
  gpu.Add("total", need.gpu.total()).Add("plan", need.gpu.plan).Add("vectors", need.gpu.vectors);
  gpu.Add("keeps_constants", report.keeps_constants).Add("limit", report.gpu_limit);
  JsonObject machine;
  machine.Add("device", report.device).Add("flops_per_second", report.machine.flops);
  machine.Add("bytes_per_second", report.machine.bytes).Add("cpus", report.machine.cpus);
  JsonObject object;
  object.Add("schema", 1).Add("ok", true).Add("job", report.name);
  object.Add("parameters", report.parameters).Add("samples", report.dataset_size);
  object.Add("steps", report.total_steps).Add("micro_batch", report.micro_batch);
  object.Add("accumulate", report.accumulate).Raw("memory", memory.Done());
  object.Raw("gpu_memory", gpu.Done()).Add("precision", report.precision).Add("fp8", report.fp8);
  object.Add("recompute_level", report.recompute_level).Add("flops_per_step", report.flops);
  if (report.gpu.has_value()) {
    object.Raw("roofline", RooflineJson(*report.gpu));
  } else {
    object.Raw("machine", machine.Done());
  }
  object.Add("plan_hash", report.plan_hash).Raw("warnings", JsonArrayOf(report.warnings));
  return object.Raw("ranks", JsonArrayOf(report.ranks, rank_json)).Done() + "\n";
}

}  // namespace lockstep::worker
