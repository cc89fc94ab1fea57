// SPDX-License-Identifier: Apache-2.0
// The MLP 784-256-10 against PyTorch: the loss of each of 100 steps on the same weights and
// batches. tools/gen_golden_mlp.py makes the file and explains the formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/golden/golden.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 100;
constexpr int64_t kBatch = 64, kWidth = 784;

std::vector<double> ReadLosses() {
  std::ifstream file(LOCKSTEP_GOLDEN "/mlp_losses.txt");
  std::vector<double> losses;
  std::string line;
  while (std::getline(file, line)) {
    if (line[0] != '#') losses.push_back(std::stod(line));
  }
  return losses;
}

void SetWeights(const Plan& plan, char* state) {
  uint64_t site = 1;  // 0.weight, 0.bias, 2.weight, 2.bias
  for (const StateEntry& entry : plan.state()) {
    if (entry.role != StateEntry::Role::kParameter) continue;
    const double fan_in = entry.name[0] == '0' ? 784 : 256;
    const float bound = static_cast<float>(1 / std::sqrt(fan_in));
    for (size_t i = 0; i < entry.bytes / 4; ++i) {
      reinterpret_cast<float*>(state + entry.offset)[i] = (Uniform(site, i) * 2 - 1) * bound;
    }
    ++site;
  }
}

void MakeBatch(uint64_t step, std::vector<float>* inputs, std::vector<int32_t>* labels) {
  for (uint64_t i = 0; i < kBatch; ++i) {
    const auto label = static_cast<int32_t>(Uniform(1000 + step, i) * 10);
    (*labels)[i] = label;
    for (uint64_t j = 0; j < kWidth; ++j) {
      (*inputs)[i * kWidth + j] = Uniform(7, static_cast<uint64_t>(label) * kWidth + j) * 0.25f +
                                  Uniform(2000 + step, i * kWidth + j) * 0.75f;
    }
  }
}

TEST(GoldenMlpTest, LossesAreThoseOfPyTorch) {
  const std::vector<double> golden = ReadLosses();
  ASSERT_EQ(golden.size(), static_cast<size_t>(kSteps));
  TrainSpec spec;
  spec.model = MlpSpec{{256}};
  spec.input = ClassificationInput({kWidth}, 10);
  spec.optimizer = SgdSpec{.lr = 0.05, .momentum = 0.9};
  spec.schedule = {.kind = ScheduleSpec::Kind::kCosine, .total_updates = kSteps};
  spec.micro_batch = kBatch;
  const auto plan = Plan::Compile(spec).value();
  const Memory64 state = Allocate(plan->state_bytes()), arena = Allocate(plan->arena_bytes());
  const auto executor = Executor::Create(plan, {state.get(), arena.get()}).value();
  executor->InitState();
  SetWeights(*plan, static_cast<char*>(executor->BeginLoad()));
  executor->EndLoad();

  std::vector<float> inputs(kBatch * kWidth);
  std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
  std::vector<int32_t> labels(kBatch);
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    MakeBatch(static_cast<uint64_t>(step), &inputs, &labels);
    const void* fields[] = {inputs.data(), labels.data()};
    ASSERT_TRUE(executor->RunShard(step + 1, 0, 0, fields, gradients.data(), {}).ok());
    const GradientSlice whole{0, plan->gradient_count(), gradients.data()};
    const StepResult result = executor->Update(step + 1, absl::MakeConstSpan(&whole, 1)).value();
    const double expected = golden[static_cast<size_t>(step)];
    worst = std::max(worst, std::fabs(result.loss - expected) / expected);
    ASSERT_NEAR(result.loss, expected, 1e-5 * expected) << "step " << step;
  }
  std::printf("worst relative error %.2e\n", worst);
}

}  // namespace
}  // namespace lockstep::engine
