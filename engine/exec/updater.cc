// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/updater.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "engine/ops/counts.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kCut = 16;       // slices and threads cut at multiples of it
constexpr size_t kMaxMoments = 8;  // of one parameter

void CheckSlices(absl::Span<const GradientSlice> reduced, int64_t count) {
  int64_t at = 0;
  for (const GradientSlice& slice : reduced) {
    LS_CHECK_EQ(slice.begin, at) << "the slices leave a gap";
    LS_CHECK(slice.end >= slice.begin && slice.end % kCut == 0);
    at = slice.end;
  }
  LS_CHECK_EQ(at, count) << "the slices do not cover the gradient vector";
}

// Element `at` of the vector.
float Read(absl::Span<const GradientSlice> reduced, int64_t at) {
  for (const GradientSlice& slice : reduced) {
    if (at >= slice.begin && at < slice.end) return slice.data[at - slice.begin];
  }
  LS_CHECK(false) << at;
  return 0;
}

// The slice [first, second) of `count` elements for part `index`, cut at multiples of kCut.
std::pair<int64_t, int64_t> CutPart(int64_t count, int index, int parts) {
  const auto [begin, end] = PartOf((count + kCut - 1) / kCut, index, parts);
  return {std::min(begin * kCut, count), std::min(end * kCut, count)};
}

bool AllFinite(const SimdKernels& simd, absl::Span<const GradientSlice> reduced, ThreadPool* pool) {
  std::atomic<bool> finite{true};
  pool->Run([&](int index) {
    for (const GradientSlice& slice : reduced) {
      const auto [begin, end] = CutPart(slice.end - slice.begin, index, pool->threads());
      if (!simd.all_finite(slice.data + begin, end - begin)) {
        finite.store(false, std::memory_order_relaxed);
        return;
      }
    }
  });
  return finite.load(std::memory_order_relaxed);
}

}  // namespace

Updater::Updater(const CompiledPlan* plan, StateRegion* state)
    : plan_(*plan),
      state_(*state),
      simd_(SimdFor(plan->target().isa)),
      step_(state->At<int64_t>(plan->Entry("step"))),
      update_count_(state->At<int64_t>(plan->Entry("update_count"))),
      loss_scale_(state->At<double>(plan->Entry("loss_scale"))) {
  for (const GradientSlot& slot : plan_.layout().slots) {
    Target target{slot.begin, slot.count, state_.At<float>(plan_.Entry(slot.parameter)), {}};
    for (const std::string& moment : plan_.optimizer().moments()) {
      target.moments.push_back(state_.At<float>(plan_.Entry(slot.parameter + "." + moment)));
    }
    LS_CHECK_LE(target.moments.size(), kMaxMoments);
    targets_.push_back(std::move(target));
  }
  AddStatistics();
}

void Updater::AddStatistics() {
  size_t slot = 0;  // in the order of the specs: mean, variance
  for (const StatisticSpec& spec : plan_.model().statistics()) {
    for (int i = 0; i < 2; ++i, ++slot) {
      const GradientSlot& at = plan_.layout().statistics[slot];
      statistics_.push_back(
          {at.begin, at.count, spec.momentum, state_.At<float>(plan_.Entry(at.parameter))});
    }
    batches_tracked_.push_back(state_.At<int64_t>(plan_.Entry(spec.name + ".num_batches_tracked")));
  }
}

void Updater::UpdateStatistics(absl::Span<const GradientSlice> reduced) {
  const double batches = static_cast<double>(plan_.spec().shards) * plan_.spec().accumulate;
  for (const Statistic& statistic : statistics_) {
    for (int64_t i = 0; i < statistic.count; ++i) {
      const double mean = static_cast<double>(Read(reduced, statistic.begin + i)) / batches;
      float& running = statistic.running[i];
      running = static_cast<float>((1 - statistic.momentum) * static_cast<double>(running) +
                                   statistic.momentum * mean);
    }
  }
  for (int64_t* count : batches_tracked_) ++*count;
}

void Updater::InitState() {
  const StateRegion::Writing writing(&state_);
  std::memset(state_.base(), 0, plan_.state_bytes());
  for (const ParameterSpec& parameter : plan_.model().parameters()) {
    Initialise(parameter, plan_.spec().seed, state_.At<float>(plan_.Entry(parameter.name)));
  }
  for (const StatisticSpec& statistic : plan_.model().statistics()) {
    std::fill_n(state_.At<float>(plan_.Entry(statistic.name + ".running_var")), statistic.channels,
                1.0f);
  }
  *loss_scale_ = 1;
}

StepResult Updater::Update(int64_t step, absl::Span<const GradientSlice> reduced,
                           ThreadPool* pool) {
  const GradientLayout& layout = plan_.layout();
  LS_CHECK_EQ(step, *step_ + 1) << "the state is not that before this step";
  CheckSlices(reduced, layout.count);
  const StateRegion::Writing writing(&state_);

  StepResult result;
  result.finite = AllFinite(simd_, reduced, pool);
  const double factor = ScheduleFactor(plan_.spec().schedule, *update_count_);
  result.learning_rate = plan_.optimizer().learning_rate() * factor;
  const float loss = Read(reduced, layout.loss);
  const SplitCount split{Read(reduced, layout.target_count),
                         Read(reduced, layout.target_count + 1)};
  if (std::isfinite(split.high) && std::isfinite(split.low)) result.valid_targets = Join(split);
  const double n = static_cast<double>(result.valid_targets);
  if (n > 0) result.loss = static_cast<double>(loss) / n;
  result.skipped = !result.finite || n == 0;
  if (!result.skipped) {
    Optimizer::Update update;
    update.index = *update_count_;
    update.learning_rate = static_cast<float>(result.learning_rate);
    update.gradient_scale =
        static_cast<float>(static_cast<double>(plan_.nominal_targets()) / (n * *loss_scale_));
    Apply(update, reduced, pool);
    UpdateStatistics(reduced);
    ++*update_count_;
  }
  *step_ = step;
  return result;
}

void Updater::Apply(const Optimizer::Update& update, absl::Span<const GradientSlice> reduced,
                    ThreadPool* pool) {
  pool->Run([&](int index) {
    for (const Target& target : targets_) {
      for (const GradientSlice& slice : reduced) {
        const int64_t begin = std::max(target.begin, slice.begin);
        const int64_t end = std::min(target.begin + target.count, slice.end);
        if (begin >= end) continue;
        const auto [first, last] = CutPart(end - begin, index, pool->threads());
        if (first < last) ApplyRange(update, target, slice, begin + first, begin + last);
      }
    }
  });
}

// Elements [begin, end) of the gradient vector, inside both the target and the slice.
void Updater::ApplyRange(const Optimizer::Update& update, const Target& target,
                         const GradientSlice& slice, int64_t begin, int64_t end) const {
  const int64_t at = begin - target.begin;
  float* moments[kMaxMoments];
  for (size_t i = 0; i < target.moments.size(); ++i) moments[i] = target.moments[i] + at;
  plan_.optimizer().Apply(update, slice.data + (begin - slice.begin), end - begin,
                          absl::MakeConstSpan(moments, target.moments.size()),
                          target.parameter + at);
}

}  // namespace lockstep::engine
