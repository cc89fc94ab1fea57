// SPDX-License-Identifier: Apache-2.0
#include "worker/profile/interpreter.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/durable_file.h"
#include "common/log.h"
#include "common/status.h"
#include "data/npy.h"

namespace lockstep::worker {
namespace {

// The first element that is not finite, or -1.
int64_t FirstBad(const engine::TensorView& view) {
  const int64_t count = view.elements();
  if (view.is_float64) {
    const auto* values = static_cast<const double*>(view.data);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) return i;
    }
  } else if (view.type == FieldSpec::Type::kFloat32) {
    const auto* values = static_cast<const float*>(view.data);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) return i;
    }
  }
  return -1;
}

data::NpyType NpyTypeOf(const engine::TensorView& view) {
  if (view.is_float64) return data::NpyType::kFloat64;
  return view.type == FieldSpec::Type::kInt32 ? data::NpyType::kInt32 : data::NpyType::kFloat32;
}

// A node's label as a part of a file's name.
std::string FileLabel(const engine::NodeInfo& node) {
  std::string label = node.name.empty() ? node.op : absl::StrCat(node.op, "-", node.name);
  for (char& c : label) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  return label;
}

}  // namespace

Interpreter::Interpreter(const engine::Plan* plan, std::string dump_dir, StepRange dump_steps)
    : training_(plan->Nodes(engine::ProgramKind::kTraining)),
      evaluation_(plan->Nodes(engine::ProgramKind::kEvaluation)),
      dump_dir_(std::move(dump_dir)),
      dump_steps_(dump_steps) {}

void Interpreter::Enter(int64_t step, int shard, int micro, double loss_scale) {
  loss_scale_ = loss_scale;
  step_ = step;
  shard_ = shard;
  micro_ = micro;
}

absl::Status Interpreter::AfterNode(engine::ProgramKind program, int node,
                                    absl::Span<const engine::TensorView> outputs) {
  const bool training = program == engine::ProgramKind::kTraining;
  const engine::NodeInfo& info = (training ? training_ : evaluation_)[static_cast<size_t>(node)];
  const bool dump = training && !dump_dir_.empty() && dump_steps_.Contains(step_);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (dump) LS_RETURN_IF_ERROR(Dump(info, o, outputs[o]));
    const int64_t bad = FirstBad(outputs[o]);
    if (bad < 0) continue;
    const double value = outputs[o].is_float64 ? static_cast<const double*>(outputs[o].data)[bad]
                                               : static_cast<const float*>(outputs[o].data)[bad];
    const std::string what = absl::StrCat(
        "node %", info.id, info.name.empty() ? "" : " '", info.name, info.name.empty() ? "" : "'",
        " ", info.text, " made ", absl::StrFormat("%g", value), " at element ", bad, " of output ",
        o,
        training ? absl::StrCat(" in step ", step_, ", shard ", shard_, ", micro-batch ", micro_)
                 : absl::StrCat(" in the evaluation after step ", step_));
    // As Trainer::CheckFinite: while the scale is being found an overflow is its doing.
    if (training && info.scaled && loss_scale_ > 1) {
      if (std::exchange(overflow_, step_) != step_) {
        LS_LOG_INFO << what << ": an overflow at a loss scale of " << loss_scale_;
      }
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": lower the learning rate, or look at the inputs with --dump-tensors"));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::Dump(const engine::NodeInfo& node, size_t output,
                               const engine::TensorView& view) {
  const data::NpyType type = NpyTypeOf(view);
  const std::string path = absl::StrFormat("%s/step-%d/shard-%d/micro-%d/%03d-%s.%d.npy", dump_dir_,
                                           step_, shard_, micro_, node.id, FileLabel(node), output);
  LS_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  LS_RETURN_IF_ERROR(file.Append(data::FormatNpyHeader(type, view.shape)));
  LS_RETURN_IF_ERROR(
      file.Append(view.data, static_cast<size_t>(view.elements()) * data::SizeOf(type)));
  return file.Commit();
}

}  // namespace lockstep::worker
