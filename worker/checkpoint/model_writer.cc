// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/model_writer.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/storage.h"
#include "common/durable_file.h"
#include "common/log.h"
#include "common/status.h"
#include "proto/message_json.h"

namespace lockstep::worker {
namespace {

// A ModelConfig (proto/model.proto).
std::string ConfigJson(const JobSpec& job, const engine::Plan& plan,
                       const data::InputOrigin& inputs) {
  const engine::InputSpec& input = plan.spec().input;
  const auto field_json = [](const FieldSpec& field) {
    const bool real = field.type == FieldSpec::Type::kFloat32;
    JsonObject object;
    object.Add("name", field.name).Add("type", real ? "float32" : "int32");
    return object.Raw("shape", JsonArrayOf(field.shape)).Add("limit", field.limit).Done();
  };
  JsonObject config;
  config.Add("format", "lockstep").Add("schema", 1);
  config.Raw("model", MessageJson(job.train().model()));
  config.Raw("input_shape", JsonArrayOf(input.fields[0].shape));
  config.Add("classes", input.classes).Add("parameters", plan.parameter_count());
  config.Raw("fields", JsonArrayOf(input.fields, field_json));
  config.Raw("data", MessageJson(job.train().data()));
  config.Add("precision", plan.spec().precision).Add("seed", job.train().seed());
  config.Add("eval_block", plan.spec().eval_block);
  if (!inputs.type.empty()) config.Add("input_type", inputs.type);
  if (!inputs.columns.empty()) config.Raw("columns", JsonArrayOf(inputs.columns));
  Passes passes = job.train().passes();
  // What only places memory or orders work is nothing of the model's.
  passes.clear_in_place();
  passes.clear_reuse_memory();
  passes.clear_keep_constants();
  passes.clear_keep_dropout();
  passes.clear_bucket_size();
  passes.clear_step_graph();
  passes.clear_whole_step_graph();
  if (passes.ByteSizeLong() > 0) config.Raw("passes", MessageJson(passes));
  // Workers start in it, wherever it is here.
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::current_path(error);
  if (!job.workdir().empty() && !error) config.Add("workdir", folder.string());
  return config.Done() + "\n";
}

// Files have fp32 in every precision: 16-bit weights are exact in it.
checkpoint::TensorView ViewOf(const engine::StateEntry& entry, const std::string& name,
                              const void* state) {
  using Type = engine::StateEntry::Type;
  const char* const data = static_cast<const char*>(state) + entry.offset;
  checkpoint::TensorView view{name, entry.type == Type::kInt64 ? "I64" : "F32", entry.shape, data,
                              entry.bytes};
  if (entry.type == Type::kBFloat16) view.stored = "BF16";
  if (entry.type == Type::kFloat16) view.stored = "F16";
  if (!view.stored.empty()) view.bytes = entry.bytes / sizeof(uint16_t) * sizeof(float);
  return view;
}

// What a file of weights holds. REQUIRES: kAverage only when the plan has averages.
std::vector<checkpoint::TensorView> TensorsOf(const engine::Plan& plan, const void* state,
                                              engine::Weights weights) {
  using Role = engine::StateEntry::Role;
  const Role role = weights == engine::Weights::kAverage ? Role::kAverage : Role::kParameter;
  // The averages have the parameters' order; they are written under the parameters' names.
  std::vector<std::string> names;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role == Role::kParameter) names.push_back(entry.name);
  }
  std::vector<checkpoint::TensorView> made;
  size_t weight = 0;
  for (const engine::StateEntry& entry : plan.state()) {
    const bool statistic = entry.role == Role::kStatistic;
    if (entry.role != role && !statistic) continue;
    made.push_back(ViewOf(entry, statistic ? entry.name : names[weight++], state));
  }
  return made;
}

// Nothing about this run goes in: the file is equal for equal weights.
std::map<std::string, std::string> WeightMetadata() { return {{"format", "pt"}}; }

}  // namespace

absl::StatusOr<std::string> WriteWeights(const std::string& path, const engine::Plan& plan,
                                         const void* state, engine::Weights weights,
                                         const std::function<bool()>& go_on) {
  return checkpoint::WriteSafetensors(path, TensorsOf(plan, state, weights), WeightMetadata(),
                                      go_on);
}

absl::StatusOr<std::string> HashWeights(const engine::Plan& plan, const void* state,
                                        engine::Weights weights,
                                        const std::function<bool()>& go_on) {
  const auto sink = [&](const void*, size_t) {
    const bool wanted = go_on == nullptr || go_on();
    return wanted ? absl::OkStatus() : absl::CancelledError("given up");
  };
  LS_ASSIGN_OR_RETURN(
      const checkpoint::StreamedFile streamed,
      checkpoint::StreamSafetensors(TensorsOf(plan, state, weights), WeightMetadata(), sink));
  return streamed.sha256;
}

void RemoveOldWeights(const std::string& dir, bool has_average, bool has_best) {
  const auto remove = [&dir](const char* name) {
    const absl::Status removed = checkpoint::Storage::Disk()->Remove(absl::StrCat(dir, "/", name));
    if (removed.ok()) return;
    LS_LOG_WARNING << "the weights of another run stay beside the model: " << removed.message();
  };
  if (!has_average) remove("ema.safetensors");
  if (!has_best) remove("best.safetensors");
}

absl::StatusOr<WrittenModel> WriteModel(const std::string& dir, const JobSpec& job,
                                        const engine::Plan& plan, const void* state,
                                        const data::InputOrigin& inputs,
                                        const std::function<bool()>& go_on) {
  WrittenModel written;
  written.path = dir + "/model.safetensors";
  LS_ASSIGN_OR_RETURN(written.sha256,
                      WriteWeights(written.path, plan, state, engine::Weights::kCurrent, go_on));
  if (plan.spec().ema_decay > 0) {
    LS_RETURN_IF_ERROR(
        WriteWeights(dir + "/ema.safetensors", plan, state, engine::Weights::kAverage, go_on)
            .status());
  }
  LS_RETURN_IF_ERROR(WriteFileDurably(dir + "/config.json", ConfigJson(job, plan, inputs)));
  return written;
}

}  // namespace lockstep::worker
