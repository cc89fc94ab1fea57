// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/parameter_table.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep::engine {

ParameterTable::ParameterTable(const CompiledPlan* plan, StateRegion* state)
    : kernels_(OptimKernelsFor(plan->target().isa)), simd_(SimdFor(plan->target().isa)) {
  const std::vector<ParameterSpec>& parameters = plan->model().parameters();
  std::map<std::string, const GradientSlot*> slots;
  for (const GradientSlot& slot : plan->layout().slots) slots.emplace(slot.parameter, &slot);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i];
    ParameterTarget target;
    target.spec = &spec;
    target.settings = plan->settings()[i];
    target.method = plan->optimizer().method(spec);
    target.count = Elements(spec.shape);
    if (!plan->spec().inference) {  // where there are gradients
      const auto slot = slots.find(spec.name);
      LS_CHECK(slot != slots.end()) << spec.name;
      target.begin = slot->second->begin;
      target.count = slot->second->count;
    }
    target.weights =
        WeightStorage(spec, plan->spec().seed, plan->WeightType(spec),
                      state->At<std::byte>(plan->Entry(spec.name)), plan->target().isa);
    if (plan->spec().ema_decay > 0) {
      target.average = state->At<float>(plan->Entry(spec.name + kAverageSuffix));
    }
    for (const std::string& moment : plan->optimizer().moments(spec)) {
      target.moments.push_back(state->At<float>(plan->Entry(absl::StrCat(spec.name, ".", moment))));
    }
    LS_CHECK_LE(target.moments.size(), kMaxMoments);
    target.first_block = static_cast<int64_t>(blocks_.size());
    for (int64_t at = 0; at < target.count; at += kBlock) {
      blocks_.push_back({static_cast<int>(i), at, std::min(at + kBlock, target.count)});
    }
    target.blocks = static_cast<int64_t>(blocks_.size()) - target.first_block;
    targets_.push_back(std::move(target));
  }
  sums_.resize(blocks_.size());
}

double ParameterTable::SumSquares(absl::Span<const GradientSlice> reduced, ThreadPool* pool) {
  ForBlocks(pool, [&](int64_t index, const Block& block) {
    const int64_t begin = targets_[static_cast<size_t>(block.target)].begin;
    NormLanes lanes;
    ForPieces(reduced, begin + block.begin, begin + block.end,
              [&](const float* data, int64_t, int64_t count) {
                kernels_.sum_squares(data, count, &lanes);
              });
    sums_[static_cast<size_t>(index)] = lanes.Sum();
  });
  double sum = 0;
  for (const double block : sums_) sum += block;
  return sum;
}

double ParameterTable::SumOf(const ParameterTarget& target, const std::vector<double>& blocks) {
  double sum = 0;
  for (int64_t i = 0; i < target.blocks; ++i) {
    sum += blocks[static_cast<size_t>(target.first_block + i)];
  }
  return sum;
}

int ParameterTable::FirstNonFinite(absl::Span<const GradientSlice> reduced) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    bool finite = true;
    ForPieces(reduced, targets_[i].begin, targets_[i].begin + targets_[i].count,
              [&](const float* data, int64_t, int64_t count) {
                finite = finite && simd_.all_finite(data, count);
              });
    if (!finite) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace lockstep::engine
