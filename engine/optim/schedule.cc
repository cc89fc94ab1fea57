// SPDX-License-Identifier: Apache-2.0
// The learning rate's factor over the updates of a run. After the linear warm-up, t counts updates
// from its end and T is the number of them.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "engine/math/math.h"
#include "engine/optim/optimizer.h"

namespace lockstep::engine {
namespace {

using Kind = ScheduleSpec::Kind;
using Curve = ScheduleSpec::Shape;

// From 1 to 0 over x in [0, 1].
double Fall(Curve shape, double x) {
  switch (shape) {
    case Curve::kLinear:
      return 1 - x;
    case Curve::kCosine:
      return 0.5 * (1 + CosineOfTurns(0.5 * x));
    case Curve::kSqrt:
      return 1 - std::sqrt(x);
  }
  return 0;
}

// torch.optim.lr_scheduler.OneCycleLR with two phases; max_lr is the optimizer's lr. L. Smith and
// N. Topin, "Super-Convergence" (2018). The momentum is not cycled.
double OneCycle(const ScheduleSpec& s, double t, double total) {
  const double first = 1 / s.div_factor, last = first / s.final_div_factor;
  const double top = s.pct_start * total - 1;
  const double end = total - 1;
  if (t <= top) return 1 + (first - 1) * Fall(s.shape, top > 0 ? t / top : 1);
  const double x = end > top ? (t - top) / (end - top) : 1;
  return last + (1 - last) * Fall(s.shape, std::min(x, 1.0));
}

double Step(const ScheduleSpec& s, int64_t t) {
  if (s.milestones.empty()) {
    const int64_t decays = t / s.step_updates;
    return Power(s.gamma, static_cast<double>(decays));
  }
  const auto passed = std::upper_bound(s.milestones.begin(), s.milestones.end(), t);
  return Power(s.gamma, static_cast<double>(passed - s.milestones.begin()));
}

absl::Status CheckStep(const ScheduleSpec& s) {
  if (s.milestones.empty() && s.step_updates < 1) {
    return absl::InvalidArgumentError("the step schedule needs 'every' or 'milestones'");
  }
  if (!s.milestones.empty() && s.step_updates > 0) {
    return absl::InvalidArgumentError("the step schedule takes 'every' or 'milestones', not both");
  }
  const bool rising = std::adjacent_find(s.milestones.begin(), s.milestones.end(),
                                         std::greater_equal<>()) == s.milestones.end();
  if (!rising || (!s.milestones.empty() && s.milestones.front() < 1)) {
    return absl::InvalidArgumentError("the step schedule's milestones must rise, from 1 on");
  }
  return absl::OkStatus();
}

absl::Status CheckOneCycle(const ScheduleSpec& s) {
  if (!(s.pct_start > 0 && s.pct_start < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("one_cycle.pct_start is ", s.pct_start, ": it must be between 0 and 1"));
  }
  if (s.div_factor >= 1 && s.final_div_factor >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "one_cycle's div_factor and final_div_factor must be 1 or more");
}

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kConstant:
      return "constant";
    case Kind::kCosine:
      return "cosine";
    case Kind::kStep:
      return "step";
    case Kind::kLinear:
      return "linear";
    case Kind::kPolynomial:
      return "polynomial";
    case Kind::kExponential:
      return "exponential";
    case Kind::kOneCycle:
      return "one_cycle";
    case Kind::kWsd:
      return "wsd";
  }
  return "";
}

bool NeedsTotal(Kind kind) {
  return kind != Kind::kConstant && kind != Kind::kStep && kind != Kind::kExponential;
}

}  // namespace

absl::Status CheckSchedule(const ScheduleSpec& schedule) {
  if (schedule.warmup_updates < 0) {
    return absl::InvalidArgumentError("schedule.warmup_updates is below 0");
  }
  if (!(schedule.min_factor >= 0 && schedule.min_factor <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule.min_factor is ", schedule.min_factor, ": it must be in [0, 1]"));
  }
  if (NeedsTotal(schedule.kind) && schedule.total_updates <= schedule.warmup_updates) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", Name(schedule.kind), " schedule has ", schedule.total_updates,
        " updates, which must be more than its ", schedule.warmup_updates, " of warm-up"));
  }
  LS_RETURN_IF_ERROR(CheckSetting("schedule.power", schedule.power, false));
  if (!(schedule.gamma > 0 && schedule.gamma <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule.gamma is ", schedule.gamma, ": it must be in (0, 1]"));
  }
  if (schedule.kind == Kind::kStep) return CheckStep(schedule);
  if (schedule.kind == Kind::kOneCycle) return CheckOneCycle(schedule);
  const int64_t after = schedule.total_updates - schedule.warmup_updates;
  if (schedule.kind == Kind::kWsd &&
      (schedule.decay_updates < 1 || schedule.decay_updates > after)) {
    return absl::InvalidArgumentError(absl::StrCat("wsd.decay_steps is ", schedule.decay_updates,
                                                   ": it must be from 1 to ", after,
                                                   ", the updates after the warm-up"));
  }
  return absl::OkStatus();
}

// Linear warm-up reaches 1 with its last update. Cosine: I. Loshchilov and F. Hutter, "SGDR"
// (2017), without restarts. After total_updates the factor stays at its last value.
double ScheduleFactor(const ScheduleSpec& schedule, int64_t update) {
  if (update < schedule.warmup_updates) {
    return static_cast<double>(update + 1) / static_cast<double>(schedule.warmup_updates);
  }
  const int64_t t = update - schedule.warmup_updates;
  const double total = static_cast<double>(schedule.total_updates - schedule.warmup_updates);
  const double progress = std::min(static_cast<double>(t) / total, 1.0);
  const double low = schedule.min_factor;
  switch (schedule.kind) {
    case Kind::kConstant:
      return 1;
    case Kind::kCosine:
      return low + (1 - low) * Fall(Curve::kCosine, progress);
    case Kind::kLinear:
      return low + (1 - low) * (1 - progress);
    case Kind::kPolynomial:
      return low + (1 - low) * Power(1 - progress, schedule.power);
    case Kind::kStep:
      return Step(schedule, t);
    case Kind::kExponential:
      return Power(schedule.gamma, static_cast<double>(t));
    case Kind::kOneCycle:
      return OneCycle(schedule, static_cast<double>(t), total);
    case Kind::kWsd: {
      const double decay = static_cast<double>(schedule.decay_updates);
      const double x = (static_cast<double>(t) - (total - decay)) / decay;
      return x <= 0 ? 1 : low + (1 - low) * Fall(schedule.shape, std::min(x, 1.0));
    }
  }
  return 1;
}

ScheduleSpec WithoutLength(ScheduleSpec schedule) {
  if (!NeedsTotal(schedule.kind)) schedule.total_updates = 0;
  return schedule;
}

std::string DescribeSchedule(const ScheduleSpec& s) {
  return absl::StrFormat("schedule %d %d %d %a %a %a %d [%s] %a %a %a %d %d",
                         static_cast<int>(s.kind), s.total_updates, s.warmup_updates, s.min_factor,
                         s.gamma, s.power, s.step_updates, absl::StrJoin(s.milestones, ","),
                         s.pct_start, s.div_factor, s.final_div_factor, static_cast<int>(s.shape),
                         s.decay_updates);
}

}  // namespace lockstep::engine
