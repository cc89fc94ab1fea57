// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/compiled_job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/page_size.h"
#include "common/round_up.h"
#include "common/status.h"
#include "common/step_range.h"
#include "job/meaning/schedule.h"
#include "worker/control/step_header.h"
#include "worker/state/partial_sums.h"
#include "worker/state/sharded_state.h"

namespace lockstep::worker {
namespace {

std::string LayoutText(const std::vector<FieldSpec>& fields) {
  return absl::StrJoin(fields, ", ", [](std::string* out, const FieldSpec& field) {
    absl::StrAppend(out, field.name, "[", absl::StrJoin(field.shape, ","), "]");
  });
}

// How many values the first extents are together, for one of them, two, and so on; those of 1 move
// nothing.
std::vector<int64_t> Borders(const std::vector<int64_t>& shape) {
  std::vector<int64_t> borders;
  int64_t values = 1;
  for (const int64_t extent : shape) {
    values *= extent;
    if (extent != 1) borders.push_back(values);
  }
  return borders;
}

// Returns whether values of shape `b` lie as those of shape `a`: one is the other with extents that
// are next to each other joined, as a row of values is of a picture.
bool LieAlike(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const std::vector<int64_t> of_a = Borders(a), of_b = Borders(b);
  return std::includes(of_a.begin(), of_a.end(), of_b.begin(), of_b.end()) ||
         std::includes(of_b.begin(), of_b.end(), of_a.begin(), of_a.end());
}

// Returns how many bytes the arena of `job` may take: what of the limit is left by all that lies
// where the arena does, in the GPU's memory or the host's. By the plan and the job alone. Errors:
// InvalidArgument when there is no limit.
absl::StatusOr<size_t> ArenaRoom(const JobSpec& job, const engine::Plan& plan,
                                 const MemoryNeed& need) {
  const bool on_gpu = plan.spec().device == engine::DeviceKind::kCuda;
  const int64_t limit = on_gpu ? job.resources().gpu_memory() : job.resources().memory();
  if (limit <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'train.recompute' auto on a ",
                     on_gpu ? "GPU needs 'resources.gpu_memory'" : "CPU needs 'resources.memory'",
                     ", into which the plan is to fit"));
  }
  const size_t rest = (on_gpu ? need.gpu.total() : need.total()) - plan.arena_bytes();
  const auto all = static_cast<size_t>(limit);
  return all > rest ? all - rest : 0;
}

// Numbers of rows, customers and the like are no classes.
void WarnOfLabels(const CompiledJob& compiled, std::vector<std::string>* warnings) {
  const Data& data = compiled.job.train().data();
  // Others say how many classes they have.
  const bool counted = data.has_csv() || (data.has_npy() && data.npy().vocab() == 0);
  const int64_t classes = compiled.plan->spec().input.classes;
  if (!counted || classes <= compiled.train_samples) return;
  const std::string& column = data.csv().label();
  const std::string what =
      data.has_csv() ? absl::StrCat("is column '", column.empty() ? "-1" : column, "' the label?")
                     : absl::StrCat("are those of '", data.npy().train_labels(), "' the labels?");
  warnings->push_back(absl::StrCat("'train.data.", data.has_csv() ? "csv" : "npy",
                                   "': the labels name ", classes, " classes for ",
                                   compiled.train_samples, " samples: ", what));
}

// A step then takes samples several times, and an epoch is less than one.
void WarnOfBatch(const CompiledJob& compiled, std::vector<std::string>* warnings) {
  const int64_t batch = compiled.job.train().global_batch();
  if (batch <= compiled.train_samples) return;
  warnings->push_back(absl::StrCat("'train.global_batch': a step takes ", batch,
                                   " samples, and there are ", compiled.train_samples,
                                   ": it takes some of them more than once"));
}

// Returns whether each target of the first samples is the token at its own place. Data that cannot
// be read has none here: who trains with it says so.
bool TargetsAreInputs(const data::Dataset& train) {
  constexpr int64_t kSamples = 16;
  const std::vector<FieldSpec>& fields = train.fields();
  if (fields.back().shape.empty()) return false;  // a class for each sample
  std::vector<int64_t> indices(static_cast<size_t>(std::min(kSamples, train.size())));
  std::iota(indices.begin(), indices.end(), 0);
  std::vector<std::vector<int32_t>> values;  // all fields of samples of tokens are i32
  std::vector<void*> into;
  for (const FieldSpec& field : fields) {
    values.emplace_back(indices.size() * static_cast<size_t>(field.elements()));
  }
  for (std::vector<int32_t>& each : values) into.push_back(each.data());
  if (!train.ReadBatch({indices}, absl::MakeSpan(into)).ok()) return false;
  bool any = false;
  for (size_t t = 0; t < values.back().size(); ++t) {
    if (values.back()[t] < 0) continue;  // not a target
    if (values.back()[t] != values.front()[t]) return false;
    any = true;
  }
  return any;
}

// Such a model learns to copy, and its accuracy is perfect.
void WarnOfTargets(const CompiledJob& compiled, std::vector<std::string>* warnings) {
  if (!compiled.targets_are_inputs) return;
  const bool masked = compiled.job.train().model().has_bert();
  warnings->push_back(absl::StrCat(
      "'train.data.npy': each target of the first samples is the token at its own place, which a ",
      masked ? "bert sees: hide the tokens that it is to guess, and label the others with -100"
             : "gpt sees: labels[t] is the token to guess at t, inputs[t + 1]; shift labels that "
               "are made for Hugging Face's models by one"));
}

// Means and deviations of the bytes themselves, as Keras and Caffe have them.
void WarnOfScale(const CompiledJob& compiled, std::vector<std::string>* warnings) {
  const Data& data = compiled.job.train().data();
  if (!data.has_npy() || !compiled.inputs_are_bytes) return;
  const auto above_one = [](double value) { return value > 1; };
  for (const auto& [key, values] :
       {std::pair("mean", &data.npy().mean()), std::pair("std", &data.npy().std())}) {
    const auto found = std::find_if(values->begin(), values->end(), above_one);
    if (found == values->end()) continue;
    warnings->push_back(
        absl::StrCat("'train.data.npy.", key, "': ", *found,
                     " is above 1, and uint8 inputs are taken as [0, 1]: divide means and "
                     "deviations of bytes by 255"));
    return;
  }
}

// As image libraries have them: [height, width, channels].
void WarnOfPictures(const CompiledJob& compiled, std::vector<std::string>* warnings) {
  const Train& train = compiled.job.train();
  const std::vector<int64_t>& shape = compiled.plan->spec().input.fields[0].shape;
  // To an mlp a sample is a row of values, in whatever order.
  if (!train.data().has_npy() || train.model().has_mlp() || shape.size() != 3) return;
  const int64_t last = shape[2];
  if ((last != 1 && last != 3 && last != 4) || shape[0] <= last || shape[1] <= last) return;
  if (last == 1 && shape[0] != shape[1]) return;  // signals, with their channels first
  warnings->push_back(absl::StrCat(
      "'train.data.npy': samples of [", absl::StrJoin(shape, ", "),
      "] look like [height, width, channels], but are taken as [channels, height, width]: "
      "transpose(0, 3, 1, 2) of the array makes them so"));
}

}  // namespace

absl::Status CheckSamplesFit(const std::vector<FieldSpec>& takes, const std::vector<FieldSpec>& has,
                             const std::string& taker, const std::string& giver) {
  const bool fits = std::equal(takes.begin(), takes.end(), has.begin(), has.end(),
                               [](const FieldSpec& a, const FieldSpec& b) {
                                 return a.name == b.name && a.type == b.type &&
                                        a.elements() == b.elements() && LieAlike(a.shape, b.shape);
                               });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(taker, " samples of ", LayoutText(takes), ", but ",
                                                 giver, " ", LayoutText(has)));
}

absl::StatusOr<JobData> OpenJobData(const JobSpec& job) {
  JobData data;
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(job.train()));
  LS_ASSIGN_OR_RETURN(data.train, data::Open(source, data::Split::kTrain, AugmentOf(job.train())));
  if (job.train().eval().every() != "never") {
    LS_ASSIGN_OR_RETURN(data.test, data::Open(source, data::Split::kTest));
    LS_RETURN_IF_ERROR(CheckSamplesFit(data.train->fields(), data.test->fields(),
                                       "train.data: the training split has", "the test split has"));
  }
  return data;
}

std::vector<std::string> WarningsOf(const CompiledJob& compiled) {
  const Train& train = compiled.job.train();
  std::vector<std::string> warnings = job::ScheduleWarnings(train.schedule(), compiled.total_steps);
  const Debug& debug = compiled.job.debug();
  const absl::StatusOr<StepRange> dumped = StepRange::Parse(debug.steps());
  if (!debug.dump_tensors().empty() && !debug.steps().empty() && dumped.ok() &&
      dumped->first > compiled.total_steps) {
    warnings.push_back(absl::StrCat("'debug.steps': ", debug.steps(),
                                    " dumps nothing, as the run's last step is ",
                                    compiled.total_steps));
  }
  // Of muon's parameters its matrices alone have a momentum.
  const std::vector<engine::StateEntry>& state = compiled.plan->state();
  const bool matrices = std::any_of(state.begin(), state.end(), [](const auto& entry) {
    return entry.role == engine::StateEntry::Role::kMoment &&
           absl::EndsWith(entry.name, ".momentum");
  });
  if (train.optimizer().has_muon() && !matrices) {
    warnings.push_back(
        "'train.optimizer.muon': there is no hidden matrix for it, so 'adamw' trains all "
        "parameters and muon's own 'lr' changes nothing");
  }
  WarnOfBatch(compiled, &warnings);
  WarnOfLabels(compiled, &warnings);
  WarnOfTargets(compiled, &warnings);
  WarnOfScale(compiled, &warnings);
  WarnOfPictures(compiled, &warnings);
  return warnings;
}

absl::StatusOr<CompiledJob> CompileJob(const JobSpec& job, const JobData& data,
                                       GradientPlace place) {
  CompiledJob compiled;
  compiled.job = job;
  LS_ASSIGN_OR_RETURN(compiled.sampler, MakeSampler(job.train(), data.train->size()));
  compiled.train_samples = data.train->size();
  compiled.inputs_are_bytes = data.train->origin().type == "uint8";
  compiled.targets_are_inputs =
      job.train().data().npy().vocab() > 0 && TargetsAreInputs(*data.train);
  compiled.total_steps = TotalSteps(job.train(), *compiled.sampler);
  LS_ASSIGN_OR_RETURN(compiled.eval_every, job::EvalEvery(job));
  LS_ASSIGN_OR_RETURN(compiled.save_every, job::SaveEvery(job));
  LS_ASSIGN_OR_RETURN(compiled.verify_every, job::VerifyEvery(job));
  LS_ASSIGN_OR_RETURN(engine::TrainSpec spec, EngineSpec(job, *data.train, compiled.total_steps));
  spec.shard_moments = ShardsMoments(job);
  const bool automatic = spec.recompute.mode == engine::RecomputeSpec::Mode::kAuto;
  if (automatic) spec.recompute.mode = engine::RecomputeSpec::Mode::kNone;
  LS_ASSIGN_OR_RETURN(compiled.plan, engine::Plan::Compile(spec));
  const int shards = job.train().shards();
  compiled.vector_count = compiled.plan->gradient_count() + StepHeader::Count(shards);
  compiled.gradient_buffers =
      PartialSums::BuffersForWorstDeal(shards, LeastWorkers(job), MostWorkers(job));
  compiled.arena_bytes = PageSize();
  if (place == GradientPlace::kHost) {
    compiled.arena_bytes +=
        compiled.gradient_buffers * RoundUp(compiled.vector_count * sizeof(float), PageSize());
  }
  (spec.shard_moments ? compiled.reserved_bytes : compiled.arena_bytes) +=
      RoundUp(compiled.plan->state_bytes(), PageSize());
  if (spec.shard_moments && place == GradientPlace::kHost) {
    compiled.reserved_bytes += RoundUp(ShardedState::SpillBytes(compiled.vector_count), PageSize());
  } else if (spec.shard_moments) {
    compiled.arena_bytes += RoundUp(compiled.plan->SumBlocks().size() * sizeof(double), PageSize());
  }
  const size_t read_bytes =
      data.train->own_bytes() + (data.test == nullptr ? 0 : data.test->own_bytes());
  const auto need_of = [&](const engine::Plan& plan) {
    return MemoryNeedOf(job, plan, compiled.gradient_buffers, compiled.vector_count, place,
                        read_bytes);
  };
  compiled.need = need_of(*compiled.plan);
  // What is kept of the weights, or of dropout, spares little time. Unless the job asks for it, it
  // is left out before the job is refused or values are made again: the bits are the same.
  const Passes& passes = job.train().passes();
  const bool short_of_room = !FitsGpu(job, compiled.need.gpu);
  if (automatic) {
    LS_ASSIGN_OR_RETURN(const size_t room, ArenaRoom(job, *compiled.plan, compiled.need));
    spec.recompute = {engine::RecomputeSpec::Mode::kAuto, room};
    if (short_of_room && !passes.has_keep_dropout()) spec.passes.keep_dropout = false;
    LS_ASSIGN_OR_RETURN(compiled.plan, engine::Plan::Compile(spec));
    compiled.need = need_of(*compiled.plan);
  } else if (short_of_room) {
    for (const auto& [has, keeps] :
         {std::pair(passes.has_keep_constants(), &spec.passes.keep_constants),
          std::pair(passes.has_keep_dropout(), &spec.passes.keep_dropout)}) {
      if (has || !*keeps || FitsGpu(job, compiled.need.gpu)) continue;
      *keeps = false;
      LS_ASSIGN_OR_RETURN(compiled.plan, engine::Plan::Compile(spec));
      compiled.need = need_of(*compiled.plan);
    }
  }
  MemoryNeed training = compiled.need;
  if (spec.evaluates && !(FitsGpu(job, training.gpu) && FitsMemory(job, training))) {
    spec.evaluates = false;
    LS_ASSIGN_OR_RETURN(const auto without, engine::Plan::Compile(spec));
    training = need_of(*without);
  }
  LS_RETURN_IF_ERROR(CheckMemory(job, *compiled.plan, compiled.need, training));
  return compiled;
}

}  // namespace lockstep::worker
