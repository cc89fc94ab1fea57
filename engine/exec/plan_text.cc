// SPDX-License-Identifier: Apache-2.0
// A plan as text, and the hash of what of it decides results.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/philox.h"
#include "engine/exec/plan.h"

namespace lockstep::engine {

std::string CompiledPlan::DumpText() const {
  std::string text = absl::StrCat("# train\n", train_.graph.ToText(), train_.memory.ToText());
  for (const GradientSlot& slot : layout_.slots) {
    absl::StrAppend(&text, "gradient[", slot.begin, ", ", slot.begin + slot.count, ") after %",
                    slot.node, ": ", slot.parameter, "\n");
  }
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    absl::StrAppend(&text, "bucket ", i, ": [", layout_.buckets[i].begin, ", ",
                    layout_.buckets[i].end, ") after %", layout_.bucket_node[i], "\n");
  }
  absl::StrAppend(&text, "# evaluate\n", evaluate_.graph.ToText(), evaluate_.memory.ToText());
  return text;
}

// Over what is computed and what is exchanged, not over where this machine puts it.
std::string CompiledPlan::MakeHash(const ScheduleSpec& schedule) const {
  std::string text = absl::StrCat(train_.graph.ToText(), "\n", evaluate_.graph.ToText());
  for (const StateEntry& entry : state_) {
    absl::StrAppend(&text, entry.name, "@", entry.offset, "+", entry.bytes, "\n");
  }
  for (const GradientSlot& slot : layout_.slots) {
    absl::StrAppend(&text, slot.parameter, "@", slot.begin, "+", slot.count, "\n");
  }
  for (const Bucket& bucket : layout_.buckets) absl::StrAppend(&text, bucket.begin, "\n");
  for (const StatisticSpec& statistic : model_->statistics()) {
    absl::StrAppend(&text, absl::StrFormat("%s momentum %a\n", statistic.name, statistic.momentum));
  }
  absl::StrAppend(&text, optimizer_->Describe(), "\n", DescribeSchedule(schedule), "\n");
  for (const ParameterSettings& own : settings_) {
    absl::StrAppend(&text, absl::StrFormat("%a %a\n", own.learning_rate, own.weight_decay));
  }
  absl::StrAppend(&text, absl::StrFormat("%a %a %a\n", spec_.label_smoothing, spec_.clip_norm,
                                         spec_.ema_decay));
  if (scales_loss()) {
    const LossScaleSpec& scale = spec_.loss_scale;
    absl::StrAppend(&text, absl::StrFormat("%a %a %a %d least 1\n", scale.init, scale.growth,
                                           scale.backoff, scale.interval));
  }
  // The second way of rounding weights to fp16.
  if (precision_.pure && precision_.type == DType::kF16) absl::StrAppend(&text, "stochastic 2\n");
  absl::StrAppend(&text, spec_.precision, " ", spec_.seed, " ", spec_.accumulate, " ", spec_.shards,
                  "\n");
  return absl::StrFormat("%016x%016x", SiteKey(1, text), SiteKey(2, text));
}

void CompiledPlan::KeepMathHash() {
  math_hash_ = MakeHash(WithoutLength(spec_.schedule));
  older_math_hash_ = MakeHash(spec_.schedule);
}

}  // namespace lockstep::engine
