// SPDX-License-Identifier: Apache-2.0
#include "worker/model_writer.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/safetensors.h"
#include "common/durable_file.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"

namespace lockstep::worker {
namespace {

absl::StatusOr<std::string> ConfigJson(const JobSpec& job, const engine::Plan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string model;
  const auto status =
      google::protobuf::util::MessageToJsonString(job.train().model(), &model, options);
  if (!status.ok()) return absl::InternalError("config.json: the model does not print");
  const engine::InputSpec& input = plan.spec().input;
  return absl::StrCat("{\"format\":\"lockstep\",\"schema\":1,\"model\":", model,
                      ",\"input_shape\":[", absl::StrJoin(input.fields[0].shape, ","),
                      "],\"classes\":", input.classes, ",\"parameters\":", plan.parameter_count(),
                      "}\n");
}

}  // namespace

absl::StatusOr<std::string> WriteWeights(const std::string& path, const engine::Plan& plan,
                                         const void* state, engine::Weights weights) {
  using Role = engine::StateEntry::Role;
  const Role role = weights == engine::Weights::kAverage ? Role::kAverage : Role::kParameter;
  // The averages have the parameters' order; they are written under the parameters' names.
  std::vector<std::string> names;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role == Role::kParameter) names.push_back(entry.name);
  }
  std::vector<checkpoint::TensorView> tensors;
  size_t weight = 0;
  for (const engine::StateEntry& entry : plan.state()) {
    const bool statistic = entry.role == Role::kStatistic;
    if (entry.role != role && !statistic) continue;
    const bool count = entry.type == engine::StateEntry::Type::kInt64;
    tensors.push_back({statistic ? entry.name : names[weight++], count ? "I64" : "F32", entry.shape,
                       static_cast<const char*>(state) + entry.offset, entry.bytes});
  }
  // Nothing about this run goes in: the file is equal for equal weights.
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  return checkpoint::WriteSafetensors(path, tensors, metadata);
}

absl::StatusOr<WrittenModel> WriteModel(const std::string& dir, const JobSpec& job,
                                        const engine::Plan& plan, const void* state) {
  WrittenModel written;
  written.path = dir + "/model.safetensors";
  LS_ASSIGN_OR_RETURN(written.sha256,
                      WriteWeights(written.path, plan, state, engine::Weights::kCurrent));
  if (plan.spec().ema_decay > 0) {
    LS_RETURN_IF_ERROR(
        WriteWeights(dir + "/ema.safetensors", plan, state, engine::Weights::kAverage).status());
  }
  LS_ASSIGN_OR_RETURN(const std::string config, ConfigJson(job, plan));
  LS_RETURN_IF_ERROR(WriteFileDurably(dir + "/config.json", config));
  return written;
}

}  // namespace lockstep::worker
