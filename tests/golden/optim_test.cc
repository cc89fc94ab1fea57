// SPDX-License-Identifier: Apache-2.0
// Optimizers with groups, clipping and averages, and schedules, against PyTorch.
// tools/gen_golden_optim.py makes the files and explains what they hold.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/exec/plan.h"
#include "engine/ops/counts.h"
#include "tests/golden/golden.h"
#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

using Rows = std::vector<std::vector<double>>;

std::map<std::string, Rows> ReadCases(const std::string& file) {
  std::ifstream in(LOCKSTEP_GOLDEN "/" + file);
  std::map<std::string, Rows> cases;
  std::string line, name;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    if (line.rfind("case ", 0) == 0) {
      words >> name >> name;
      continue;
    }
    std::vector<double> row;
    for (double x = 0; words >> x;) row.push_back(x);
    cases[name].push_back(row);
  }
  return cases;
}

constexpr int kUpdates = 12;

// One model of the generator, updated with its gradients.
class Updated {
 public:
  explicit Updated(const TrainSpec& spec) : job_(spec) {
    plan_ = CompiledPlan::Make(spec).value();
    char* state = static_cast<char*>(job_.executor->BeginLoad());
    for (uint64_t p = 0; p < plan_->model().parameters().size(); ++p) {
      const StateEntry& entry = plan_->Entry(plan_->model().parameters()[p].name);
      auto* values = reinterpret_cast<float*>(state + entry.offset);
      for (uint64_t i = 0; i < entry.bytes / 4; ++i) {
        values[i] = (Uniform(1 + p, i) - 0.5f) * 0.5f;
      }
    }
    job_.executor->EndLoad();
    for (int update = 0; update < kUpdates; ++update) Step(update);
  }

  // As a line of the file.
  std::vector<double> Row(const std::string& name) {
    const StateEntry& entry = plan_->Entry(name);
    const auto* values =
        reinterpret_cast<const float*>(static_cast<char*>(job_.state.data()) + entry.offset);
    std::vector<double> row = {0, 0};
    for (size_t i = 0; i < entry.bytes / 4; ++i) {
      const double x = values[i];
      row[0] += x;
      row[1] += x * x;
      if (i < 8) row.push_back(x);
    }
    return row;
  }
  const std::vector<ParameterSpec>& parameters() const { return plan_->model().parameters(); }

 private:
  void Step(int update) {
    const GradientLayout& layout = plan_->layout();
    std::vector<float> gradients(static_cast<size_t>(layout.count));
    for (const GradientSlot& slot : layout.slots) {
      uint64_t p = 0;
      while (parameters()[p].name != slot.parameter) ++p;
      for (int64_t i = 0; i < slot.count; ++i) {
        const uint64_t site = 100 + 10 * static_cast<uint64_t>(update) + p;
        gradients[static_cast<size_t>(slot.begin + i)] =
            (Uniform(site, static_cast<uint64_t>(i)) - 0.5f) * 0.2f;
      }
    }
    const SplitCount one = Split(1);
    gradients[static_cast<size_t>(layout.target_count)] = one.high;
    gradients[static_cast<size_t>(layout.target_count) + 1] = one.low;
    const GradientSlice whole{0, layout.count, gradients.data()};
    ASSERT_FALSE(job_.executor->Update(update + 1, absl::MakeConstSpan(&whole, 1)).value().skipped);
  }

  Job job_;
  std::shared_ptr<const CompiledPlan> plan_;
};

TrainSpec Small(const OptimizerSpec& optimizer) {
  TrainSpec spec;
  spec.model = MlpSpec{{20}};
  spec.input = ClassificationInput({12}, 6);
  spec.optimizer = optimizer;
  spec.micro_batch = 1;
  return spec;
}

void Compare(const std::string& name, const TrainSpec& spec) {
  SCOPED_TRACE(name);
  static const auto* const golden = new std::map<std::string, Rows>(ReadCases("optim.txt"));
  ASSERT_TRUE(golden->contains(name));
  const Rows& rows = golden->at(name);
  Updated updated(spec);
  std::vector<std::string> names;
  for (const ParameterSpec& p : updated.parameters()) names.push_back(p.name);
  if (spec.ema_decay > 0) {
    for (const ParameterSpec& p : updated.parameters()) names.push_back(p.name + ".ema");
  }
  ASSERT_EQ(rows.size(), names.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<double> row = updated.Row(names[r]);
    ASSERT_EQ(row.size(), rows[r].size());
    for (size_t i = 0; i < row.size(); ++i) {
      // Weights are about 0.2 and move by 0.01 to 0.3; sums add 240 of them.
      EXPECT_NEAR(row[i], rows[r][i], i < 2 ? 2e-5 : 1e-6) << names[r] << " " << i;
    }
  }
}

constexpr AdamSpec kAdamW = {.lr = 3e-3, .weight_decay = 0.1, .decoupled = true};

TEST(GoldenOptimTest, Sgd) {
  Compare("sgd",
          Small(SgdSpec{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}));
}

TEST(GoldenOptimTest, Adam) { Compare("adam", Small(AdamSpec{.lr = 3e-3, .weight_decay = 0.05})); }

TEST(GoldenOptimTest, AdamW) {
  AdamSpec spec = kAdamW;
  spec.beta1 = 0.8;
  spec.beta2 = 0.95;
  spec.eps = 1e-6;
  Compare("adamw", Small(spec));
}

TEST(GoldenOptimTest, ParameterGroups) {
  TrainSpec spec = Small(kAdamW);
  spec.spare_norms_and_biases = true;
  spec.groups = {{"0.b*", 2, 0.3}};  // decides against the sparing of biases
  Compare("adamw_groups", spec);
}

TEST(GoldenOptimTest, ClippingAndAverage) {
  AdamSpec adam = kAdamW;
  adam.eps = 1e-3;  // so that the scale of gradients shows
  TrainSpec spec = Small(adam);
  spec.clip_norm = 0.3;
  spec.ema_decay = 0.9;
  Compare("adamw_clip_ema", spec);
}

TEST(GoldenOptimTest, Lamb) { Compare("lamb", Small(LambSpec{.lr = 3e-3, .weight_decay = 0.05})); }

TEST(GoldenOptimTest, Muon) {
  MuonSpec muon;
  muon.lr = 0.02;
  muon.adamw.lr = 3e-3;
  Compare("muon", Small(muon));
  // The same layers, written one by one: the last is the head there, too.
  TrainSpec layers = Small(muon);
  layers.model = LayersSpec{{{.kind = LayerSpec::Kind::kLinear, .width = 20},
                             {.kind = LayerSpec::Kind::kRelu},
                             {.kind = LayerSpec::Kind::kLinear}}};
  Compare("muon", layers);
  muon.nesterov = false;
  muon.match_rms_adamw = true;
  Compare("muon_rms", Small(muon));
}

TEST(GoldenScheduleTest, FactorsAreThoseOfPyTorch) {
  using Kind = ScheduleSpec::Kind;
  std::map<std::string, ScheduleSpec> specs;
  specs["cosine"] = {.kind = Kind::kCosine, .min_factor = 0.1};
  specs["step"] = {.kind = Kind::kStep, .gamma = 0.5, .step_updates = 7};
  specs["milestones"] = {.kind = Kind::kStep, .gamma = 0.1, .milestones = {4, 20}};
  specs["linear"] = {.kind = Kind::kLinear, .min_factor = 0.2};
  specs["polynomial"] = {.kind = Kind::kPolynomial, .power = 2};
  specs["exponential"] = {.kind = Kind::kExponential, .gamma = 0.9};
  specs["one_cycle"] = {.kind = Kind::kOneCycle, .shape = ScheduleSpec::Shape::kCosine};
  specs["one_cycle_linear"] = {
      .kind = Kind::kOneCycle, .pct_start = 0.4, .div_factor = 10, .final_div_factor = 100};
  specs["warmup_step"] = {
      .kind = Kind::kStep, .warmup_updates = 5, .gamma = 0.5, .step_updates = 7};
  specs["warmup_linear"] = {.kind = Kind::kLinear, .warmup_updates = 5, .min_factor = 0.2};
  const std::map<std::string, Rows> golden = ReadCases("schedules.txt");
  ASSERT_EQ(golden.size(), specs.size());
  for (const auto& [name, rows] : golden) {
    ScheduleSpec& spec = specs.at(name);
    spec.total_updates = 30;
    ASSERT_TRUE(CheckSchedule(spec).ok()) << name;
    ASSERT_EQ(rows[0].size(), 30u);
    for (int64_t t = 0; t < 30; ++t) {
      EXPECT_NEAR(ScheduleFactor(spec, t), rows[0][static_cast<size_t>(t)], 1e-9)
          << name << " " << t;
    }
  }
}

TEST(GoldenScheduleTest, WarmupStableDecay) {
  ScheduleSpec spec{.kind = ScheduleSpec::Kind::kWsd, .total_updates = 20, .warmup_updates = 4};
  spec.min_factor = 0.1;
  spec.decay_updates = 10;
  ASSERT_TRUE(CheckSchedule(spec).ok());
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 0), 0.25);
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 9), 1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 15), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 20), 0.1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 99), 0.1);
  spec.shape = ScheduleSpec::Shape::kSqrt;
  EXPECT_DOUBLE_EQ(ScheduleFactor(spec, 15), 0.1 + 0.9 * (1 - std::sqrt(0.5)));
  spec.decay_updates = 17;
  EXPECT_FALSE(CheckSchedule(spec).ok());
}

}  // namespace
}  // namespace lockstep::engine
