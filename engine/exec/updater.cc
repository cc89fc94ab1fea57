// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/updater.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "engine/exec/loss_scale.h"
#include "engine/ops/counts.h"

namespace lockstep::engine {
namespace {

// Elements that are updated and then averaged while they are in the first-level caches.
constexpr int64_t kChunk = 2048;

void CheckSlices(absl::Span<const GradientSlice> reduced, int64_t count) {
  int64_t at = 0;
  for (const GradientSlice& slice : reduced) {
    LS_CHECK_EQ(slice.begin, at) << "the slices leave a gap";
    LS_CHECK(slice.end >= slice.begin && slice.end % ParameterTable::kCut == 0);
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

// Of the elements from `from` on.
bool AllFinite(const SimdKernels& simd, absl::Span<const GradientSlice> reduced, int64_t from,
               ThreadPool* pool) {
  std::atomic<bool> finite{true};
  pool->Run([&](int index) {
    for (const GradientSlice& slice : reduced) {
      const int64_t first = std::clamp<int64_t>(from - slice.begin, 0, slice.end - slice.begin);
      const auto [begin, end] = CutPart(slice.end - slice.begin - first, index, pool->threads());
      if (!simd.all_finite(slice.data + first + begin, end - begin)) {
        finite.store(false, std::memory_order_relaxed);
        return;
      }
    }
  });
  return finite.load(std::memory_order_relaxed);
}

// The target's moments from element `at` on.
struct MomentsAt {
  MomentsAt(const ParameterTarget& target, int64_t at) : count(target.moments.size()) {
    for (size_t i = 0; i < count; ++i) pointers[i] = target.moments[i] + at;
  }
  absl::Span<float* const> span() const { return absl::MakeConstSpan(pointers.data(), count); }
  std::array<float*, ParameterTable::kMaxMoments> pointers;
  size_t count;
};

}  // namespace

Updater::Updater(const CompiledPlan* plan, StateRegion* state, std::byte* scratch)
    : plan_(*plan),
      state_(*state),
      simd_(SimdFor(plan->target().isa)),
      kernels_(OptimKernelsFor(plan->target().isa)),
      table_(plan, state),
      tail_begin_(plan->spec().inference ? 0 : plan->TailBegin()),
      scratch_(reinterpret_cast<float*>(scratch)),
      step_(state->At<int64_t>(plan->Entry("step"))),
      update_count_(state->At<int64_t>(plan->Entry("update_count"))),
      loss_scale_(state->At<double>(plan->Entry("loss_scale"))),
      growth_count_(state->At<int64_t>(plan->Entry("growth_count"))),
      skip_count_(state->At<int64_t>(plan->Entry("skip_count"))),
      tracking_(state->At<Tracking>(plan->Entry("tracking"))) {
  for (const ParameterTarget& target : table_.targets()) {
    trust_ratio_ |= target.method == Optimizer::Method::kTrustRatio;
  }
  if (trust_ratio_) {
    parameter_sums_.resize(static_cast<size_t>(table_.block_count()));
    direction_sums_.resize(static_cast<size_t>(table_.block_count()));
  }
  if (plan->spec().shard_moments) sum_blocks_ = plan->SumBlocks();
  AddStatistics();
}

void Updater::AddStatistics() {
  size_t slot = 0;  // in the order of the specs: mean, variance
  for (const StatisticSpec& spec : plan_.model().statistics()) {
    for (const char* what : {".running_mean", ".running_var"}) {
      // A plan for inference has no gradient vector and no update.
      const int64_t begin = plan_.spec().inference ? 0 : plan_.layout().statistics[slot++].begin;
      statistics_.push_back(
          {begin, spec.channels, spec.momentum, state_.At<float>(plan_.Entry(spec.name + what))});
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
  ZeroState();
  for (const ParameterTarget& target : table_.targets()) {
    InitialiseWeights(*target.spec, plan_.spec().seed, plan_.WeightType(*target.spec),
                      plan_.target().isa, state_.base() + plan_.Entry(target.spec->name).offset);
    if (target.average != nullptr) {
      std::copy_n(target.weights.fp32(), target.count, target.average);
    }
  }
  for (const StatisticSpec& statistic : plan_.model().statistics()) {
    std::fill_n(state_.At<float>(plan_.Entry(statistic.name + ".running_var")), statistic.channels,
                1.0f);
  }
  *loss_scale_ = plan_.scales_loss() ? plan_.spec().loss_scale.init : 1;
}

void Updater::ZeroState() {
  begun_ = false;
  if (!plan_.spec().shard_moments) {
    std::memset(state_.base(), 0, plan_.state_bytes());
    return;
  }
  // The moments lie together; what is between other entries is zero too.
  size_t at = 0;
  for (const StateEntry& entry : plan_.state()) {
    if (entry.role != StateEntry::Role::kMoment) continue;
    if (at == 0) std::memset(state_.base(), 0, entry.offset);
    at = entry.offset + entry.bytes;
  }
  std::memset(state_.base() + at, 0, plan_.state_bytes() - at);
  for (const HeldRange& held : held_) {
    for (const StateRange& range : plan_.MomentsOf(held.begin, held.end)) {
      std::memset(state_.base() + range.begin, 0, range.end - range.begin);
    }
  }
}

void Updater::SetTracking(const Tracking& tracking) {
  const StateRegion::Writing writing(&state_);
  *tracking_ = tracking;
}

Updater::Findings Updater::Find(Slices reduced, ThreadPool* pool) {
  Findings findings;
  if (plan_.spec().clip_norm > 0) {
    findings.squares = table_.SumSquares(reduced, pool);
    // The sums are of the parameters alone: the statistics lie in the tail.
    findings.finite =
        std::isfinite(findings.squares) && AllFinite(simd_, reduced, tail_begin_, pool);
  } else {
    findings.finite = AllFinite(simd_, reduced, 0, pool);
  }
  if (!findings.finite) findings.nonfinite = table_.FirstNonFinite(reduced);
  return findings;
}

// Squares of floats and their sums are finite in fp64 when the floats are.
Updater::Findings Updater::FindIn(absl::Span<const double> sums) const {
  const auto finite = [](double sum) { return std::isfinite(sum); };
  const auto parameters = sums.first(static_cast<size_t>(table_.block_count()));
  Findings findings;
  if (plan_.spec().clip_norm > 0) {
    for (const double sum : parameters) findings.squares += sum;
  }
  findings.finite = std::all_of(sums.begin(), sums.end(), finite);
  for (size_t i = 0; !findings.finite && i < table_.targets().size(); ++i) {
    const ParameterTarget& target = table_.targets()[i];
    const auto own =
        sums.subspan(static_cast<size_t>(target.first_block), static_cast<size_t>(target.blocks));
    if (std::all_of(own.begin(), own.end(), finite)) continue;
    findings.nonfinite = static_cast<int>(i);
    break;
  }
  return findings;
}

StepResult Updater::Examine(Slices reduced, Findings findings) const {
  const GradientLayout& layout = plan_.layout();
  StepResult result;
  const float loss = Read(reduced, layout.loss);
  const SplitCount split{Read(reduced, layout.target_count),
                         Read(reduced, layout.target_count + 1)};
  const bool counted = std::isfinite(split.high) && std::isfinite(split.low);
  result.finite = findings.finite && std::isfinite(loss) && counted;
  if (counted) result.valid_targets = Join(split);
  const double n = static_cast<double>(result.valid_targets);
  // The mean of nothing is no number.
  result.loss = n > 0 ? static_cast<double>(loss) / n : std::numeric_limits<double>::quiet_NaN();
  if (n > 0) {
    result.gradient_norm = std::sqrt(findings.squares) *
                           static_cast<double>(plan_.nominal_targets()) / (n * *loss_scale_);
  }
  result.skipped = !result.finite || n == 0;
  if (!result.finite) {
    const int first = findings.nonfinite;
    result.nonfinite = std::isfinite(loss) && counted ? StepResult::kStatistics : StepResult::kLoss;
    if (first >= 0) result.nonfinite = table_.targets()[static_cast<size_t>(first)].spec->name;
  }
  return result;
}

template <typename Change>
StepResult Updater::Advance(Slices reduced, Findings findings, Change change) {
  StepResult result = Examine(reduced, findings);
  result.loss_scale = *loss_scale_;
  const double factor = ScheduleFactor(plan_.spec().schedule, *update_count_);
  result.learning_rate = plan_.optimizer().learning_rate() * factor;
  if (!result.skipped) {
    Optimizer::Update update;
    update.index = *update_count_;
    update.learning_rate = factor;
    update.gradient_scale = static_cast<double>(plan_.nominal_targets()) /
                            (static_cast<double>(result.valid_targets) * *loss_scale_);
    // As torch.nn.utils.clip_grad_norm_.
    const double clip = plan_.spec().clip_norm;
    if (clip > 0) update.gradient_scale *= std::min(1.0, clip / (result.gradient_norm + 1e-6));
    change(update);
    UpdateStatistics(reduced);
    ++*update_count_;
  }
  // A step without any target says nothing about the scale.
  if (plan_.scales_loss() && (!result.finite || result.valid_targets > 0)) {
    UpdateLossScale(plan_.spec().loss_scale, !result.finite, loss_scale_, growth_count_);
  }
  *skip_count_ = result.finite ? 0 : *skip_count_ + 1;
  result.skipped_in_a_row = *skip_count_;
  return result;
}

StepResult Updater::Update(int64_t step, Slices reduced, ThreadPool* pool) {
  LS_CHECK_EQ(step, begun_step() + 1) << "the state is not that before this step";
  CheckSlices(reduced, plan_.layout().count);
  const StateRegion::Writing writing(&state_);
  const StepResult result =
      Advance(reduced, Find(reduced, pool),
              [&](const Optimizer::Update& update) { Apply(update, reduced, pool); });
  *step_ = step;
  return result;
}

void Updater::HoldMoments(std::vector<HeldRange> held) {
  LS_CHECK(plan_.spec().shard_moments && !begun_);
  held_ = std::move(held);
}

StepResult Updater::BeginUpdate(int64_t step, Slices reduced, ThreadPool* pool) {
  CheckSlices(reduced, plan_.layout().count);
  return BeginWith(step, reduced, Find(reduced, pool), pool);
}

StepResult Updater::BeginWith(int64_t step, Slices reduced, Findings findings, ThreadPool* pool) {
  LS_CHECK_EQ(step, begun_step() + 1) << "the moments are not those before this step";
  const StateRegion::Writing writing(&state_);
  const StepResult result = Advance(reduced, findings, [&](const Optimizer::Update& update) {
    ApplyHeld(update, reduced, pool);
  });
  begun_ = !result.skipped;
  if (result.skipped) *step_ = step;
  return result;
}

void Updater::SumSquares(Slices reduced, absl::Span<double> sums, ThreadPool* pool) {
  LS_CHECK_EQ(sums.size(), sum_blocks_.size());
  summed_.assign(reduced.begin(), reduced.end());
  pool->Run([&](int part) {
    const auto [first, last] =
        PartOf(static_cast<int64_t>(own_sums_.size()), part, pool->threads());
    for (int64_t i = first; i < last; ++i) {
      const auto index = static_cast<size_t>(own_sums_[static_cast<size_t>(i)]);
      const GradientRange& block = sum_blocks_[index];
      NormLanes lanes;
      int64_t seen = 0;
      ForPieces(reduced, block.begin, block.end, [&](const float* data, int64_t, int64_t count) {
        kernels_.sum_squares(data, count, &lanes);
        seen += count;
      });
      LS_CHECK_EQ(seen, block.end - block.begin) << "block " << index << " is not there";
      sums[index] = lanes.Sum();
    }
  });
}

StepResult Updater::BeginUpdateWith(int64_t step, absl::Span<const double> sums, ThreadPool* pool) {
  LS_CHECK_EQ(sums.size(), sum_blocks_.size());
  return BeginWith(step, summed_, FindIn(sums), pool);
}

void Updater::FinishUpdate(int64_t step, Slices weights, ThreadPool* pool) {
  LS_CHECK(begun_ && step == *step_ + 1) << step;
  CheckSlices(weights, plan_.layout().count);
  const StateRegion::Writing writing(&state_);
  Optimizer::Update update;
  update.index = *update_count_ - 1;
  pool->Run([&](int index) {
    for (const ParameterTarget& target : table_.targets()) {
      ForPieces(weights, target.begin, target.begin + target.count,
                [&](const float* data, int64_t at, int64_t count) {
                  const auto [first, last] = CutPart(count, index, pool->threads());
                  for (int64_t i = first; i < last; i += kChunk) {
                    const int64_t n = std::min(kChunk, last - i);
                    std::copy_n(data + i, n, target.weights.fp32() + at + i);
                    Average(update, target, at + i, n);
                  }
                });
    }
  });
  begun_ = false;
  *step_ = step;
}

// Until then, `learning_rate` of the update is the schedule's factor.
Optimizer::Update Updater::For(const Optimizer::Update& update, const ParameterTarget& target) {
  Optimizer::Update own = update;
  own.learning_rate = target.settings.learning_rate * update.learning_rate;
  own.weight_decay = target.settings.weight_decay;
  return own;
}

void Updater::Apply(const Optimizer::Update& update, Slices reduced, ThreadPool* pool) {
  if (trust_ratio_) return ApplyTrustRatio(update, reduced, pool);
  ApplyElementwise(update, reduced, pool);
  for (const ParameterTarget& target : table_.targets()) {
    if (target.method == Optimizer::Method::kMatrix) ApplyMatrix(update, target, reduced, pool);
  }
}

void Updater::ApplyElementwise(const Optimizer::Update& update, Slices reduced, ThreadPool* pool) {
  pool->Run([&](int index) {
    for (const ParameterTarget& target : table_.targets()) {
      if (target.method != Optimizer::Method::kElementwise) continue;
      ForPieces(reduced, target.begin, target.begin + target.count,
                [&](const float* data, int64_t at, int64_t count) {
                  const auto [first, last] = CutPart(count, index, pool->threads());
                  pool->Moved();
                  if (first < last) {
                    ApplyRange(update, target, data + first, at + first, last - first);
                  }
                });
    }
  });
}

void Updater::ApplyRange(const Optimizer::Update& update, const ParameterTarget& target,
                         const float* gradient, int64_t at, int64_t count) const {
  const Optimizer::Update own = For(update, target);
  const bool whole = target.average == nullptr && target.weights.is_fp32();
  const int64_t chunk = whole ? count : kChunk;
  alignas(64) float buffer[kChunk];
  for (int64_t i = 0; i < count; i += chunk) {
    const int64_t n = std::min(chunk, count - i);
    float* const weights = target.weights.Read(at + i, n, buffer);
    plan_.optimizer().Apply(own, gradient + i, n, MomentsAt(target, at + i).span(), weights);
    target.weights.Write(update.index, at + i, n, weights);
    Average(update, target, at + i, n);
  }
}

void Updater::ApplyHeld(const Optimizer::Update& update, Slices reduced, ThreadPool* pool) {
  pool->Run([&](int index) {
    for (const ParameterTarget& target : table_.targets()) {
      for (const HeldRange& held : held_) {
        const int64_t begin = std::max(held.begin, target.begin);
        const int64_t end = std::min(held.end, target.begin + target.count);
        if (begin >= end) continue;
        ForPieces(reduced, begin, end, [&](const float* data, int64_t at, int64_t count) {
          const auto [first, last] = CutPart(count, index, pool->threads());
          if (first == last) return;
          ApplyBeside(update, target, data + first, begin - target.begin + at + first, last - first,
                      held.weights + (begin - held.begin) + at + first);
        });
      }
    }
  });
}

void Updater::ApplyBeside(const Optimizer::Update& update, const ParameterTarget& target,
                          const float* gradient, int64_t at, int64_t count, float* weights) const {
  const Optimizer::Update own = For(update, target);
  alignas(64) float aside[kChunk];  // gradients in whose place the weights go
  for (int64_t i = 0; i < count; i += kChunk) {
    const int64_t n = std::min(kChunk, count - i);
    const float* from = gradient + i;
    if (from == weights + i) {
      std::copy_n(from, n, aside);
      from = aside;
    }
    std::copy_n(target.weights.fp32() + at + i, n, weights + i);
    plan_.optimizer().Apply(own, from, n, MomentsAt(target, at + i).span(), weights + i);
  }
}

void Updater::Average(const Optimizer::Update& update, const ParameterTarget& target, int64_t at,
                      int64_t count) const {
  if (target.average == nullptr) return;
  // The first update starts the average, as in torch.optim.swa_utils.AveragedModel.
  if (update.index == 0) {
    std::copy_n(target.weights.fp32() + at, count, target.average + at);
    return;
  }
  kernels_.average(static_cast<float>(1 - plan_.spec().ema_decay), target.weights.fp32() + at,
                   count, target.average + at);
}

void Updater::ApplyTrustRatio(const Optimizer::Update& update, Slices reduced, ThreadPool* pool) {
  using Block = ParameterTable::Block;
  const Optimizer& optimizer = plan_.optimizer();
  table_.ForBlocks(pool, [&](int64_t index, const Block& block) {
    const ParameterTarget& target = table_.targets()[static_cast<size_t>(block.target)];
    const Optimizer::Update own = For(update, target);
    NormLanes parameter, direction;
    ForPieces(reduced, target.begin + block.begin, target.begin + block.end,
              [&](const float* data, int64_t offset, int64_t count) {
                alignas(64) float buffer[kChunk];
                for (int64_t i = 0; i < count; i += kChunk) {
                  const int64_t n = std::min(kChunk, count - i), at = block.begin + offset + i;
                  optimizer.Measure(own, data + i, n, MomentsAt(target, at).span(),
                                    target.weights.Read(at, n, buffer), &parameter, &direction);
                }
              });
    parameter_sums_[static_cast<size_t>(index)] = parameter.Sum();
    direction_sums_[static_cast<size_t>(index)] = direction.Sum();
  });
  table_.ForBlocks(pool, [&](int64_t, const Block& block) {
    const ParameterTarget& target = table_.targets()[static_cast<size_t>(block.target)];
    const Optimizer::Update own = For(update, target);
    const double parameter_norm = std::sqrt(ParameterTable::SumOf(target, parameter_sums_));
    const double direction_norm = std::sqrt(ParameterTable::SumOf(target, direction_sums_));
    alignas(64) float buffer[kChunk];
    for (int64_t at = block.begin; at < block.end; at += kChunk) {
      const int64_t n = std::min(kChunk, block.end - at);
      float* const weights = target.weights.Read(at, n, buffer);
      optimizer.Move(own, parameter_norm, direction_norm, n, MomentsAt(target, at).span(), weights);
      target.weights.Write(update.index, at, n, weights);
      Average(update, target, at, n);
    }
  });
}

void Updater::ApplyMatrix(const Optimizer::Update& update, const ParameterTarget& target,
                          Slices reduced, ThreadPool* pool) {
  const Optimizer::Update own = For(update, target);
  const Optimizer& optimizer = plan_.optimizer();
  pool->Run([&](int index) {
    ForPieces(reduced, target.begin, target.begin + target.count,
              [&](const float* data, int64_t at, int64_t count) {
                const auto [first, last] = CutPart(count, index, pool->threads());
                if (first == last) return;
                optimizer.Direct(own, data + first, last - first,
                                 MomentsAt(target, at + first).span(), scratch_ + at + first);
              });
  });
  double squares = 0;
  for (int64_t at = 0; at < target.count; at += ParameterTable::kBlock) {
    NormLanes lanes;
    kernels_.sum_squares(scratch_ + at, std::min(ParameterTable::kBlock, target.count - at),
                         &lanes);
    squares += lanes.Sum();
  }
  // Behind the optimizer's own scratch: room for weights that are not in fp32.
  const CpuTarget& products = plan_.targets()[OpClass::kProducts];
  float* const widened = scratch_ + optimizer.scratch_bytes(*target.spec, products) / 4;
  float* const weights = target.weights.Read(0, target.count, widened);
  optimizer.MoveMatrix(own, *target.spec, std::sqrt(squares), scratch_, weights, products, pool);
  target.weights.Write(update.index, 0, target.count, weights);
  Average(update, target, 0, target.count);
}

}  // namespace lockstep::engine
