// SPDX-License-Identifier: Apache-2.0
// Small variants of cnn and resnet against PyTorch: losses, every gradient of the first step, the
// parameters and running statistics after ten steps, the loss in evaluation mode.
// tools/gen_golden_images.py makes the files and explains the formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/exec/plan.h"
#include "tests/golden/golden.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 8;

float Signed(uint64_t site, uint64_t i) { return Uniform(site, i) * 2 - 1; }

// The values of a golden file, taken one after the other.
class Golden {
 public:
  explicit Golden(const std::string& name) {
    std::ifstream file(LOCKSTEP_GOLDEN "/" + name, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    values_.resize(bytes.size() / sizeof(float));
    std::memcpy(values_.data(), bytes.data(), values_.size() * sizeof(float));
  }
  bool done() const { return at_ == values_.size(); }
  // The largest difference to `is`, as a part of the largest value.
  double Compare(const float* is, int64_t count) {
    double difference = 0, largest = 1e-3;
    for (int64_t i = 0; i < count; ++i) {
      const double value = at_ < values_.size() ? static_cast<double>(values_[at_++]) : NAN;
      const double off = std::fabs(static_cast<double>(is[i]) - value);
      if (!(off <= difference)) difference = off;
      largest = std::max(largest, std::fabs(value));
    }
    return difference / largest;
  }

 private:
  std::vector<float> values_;
  size_t at_ = 0;
};

class Training {
 public:
  Training(const ModelSpec& model, const std::vector<int64_t>& shape, bool fuse) {
    TrainSpec spec;
    spec.model = model;
    spec.input = ClassificationInput(shape, 10);
    spec.optimizer = SgdSpec{.lr = 0.02, .momentum = 0.9, .weight_decay = 5e-4};
    spec.micro_batch = spec.eval_block = kBatch;
    spec.passes.fuse = fuse;
    plan_ = CompiledPlan::Make(spec).value();
    state_ = Allocate(plan_->state_bytes());
    arena_ = Allocate(plan_->arena_bytes());
    executor_ = Executor::Create(plan_, {state_.get(), arena_.get()}).value();
    gradients_.resize(static_cast<size_t>(plan_->gradient_count()));
    executor_->InitState();
    executor_->BeginLoad();
    uint64_t site = 1;
    for (const ParameterSpec& parameter : plan_->model().parameters()) {
      SetWeights(site++, parameter.shape, At(parameter.name));
    }
    executor_->EndLoad();
  }

  void Batch(uint64_t step) {
    const int64_t count = kBatch * plan_->spec().input.fields[0].elements();
    inputs_.resize(static_cast<size_t>(count));
    labels_.resize(kBatch);
    for (uint64_t i = 0; i < inputs_.size(); ++i) inputs_[i] = Signed(2000 + step, i);
    for (uint64_t i = 0; i < kBatch; ++i) {
      labels_[i] = static_cast<int32_t>(Uniform(1000 + step, i) * 10);
    }
  }
  float Step(int step) {
    Batch(static_cast<uint64_t>(step - 1));
    const void* fields[] = {inputs_.data(), labels_.data()};
    EXPECT_TRUE(executor_->RunShard(step, 0, 0, fields, gradients_.data(), {}).ok());
    const GradientSlice whole{0, plan_->gradient_count(), gradients_.data()};
    return static_cast<float>(executor_->Update(step, absl::MakeConstSpan(&whole, 1)).value().loss);
  }
  float EvaluationLoss() {
    Batch(0);
    const void* fields[] = {inputs_.data(), labels_.data()};
    EvalSums sums;
    EXPECT_TRUE(executor_->Evaluate(fields, kBatch, &sums).ok());
    return static_cast<float>(sums.loss / static_cast<double>(kBatch));
  }
  const CompiledPlan& plan() const { return *plan_; }
  float* At(const std::string& name) {
    return reinterpret_cast<float*>(static_cast<char*>(state_.get()) + plan_->Entry(name).offset);
  }
  const float* Gradient(const std::string& name) const {
    for (const GradientSlot& slot : plan_->layout().slots) {
      if (slot.parameter == name) return gradients_.data() + slot.begin;
    }
    return nullptr;
  }

 private:
  static void SetWeights(uint64_t site, const Shape& shape, float* values) {
    const int64_t count = Elements(shape);
    const float bound = static_cast<float>(std::sqrt(3.0 / static_cast<double>(count / shape[0])));
    for (int64_t i = 0; i < count; ++i) {
      const float u = Signed(site, static_cast<uint64_t>(i));
      values[i] = shape.size() > 1 ? u * bound : u * 0.125f + 0.5f;
    }
  }

  std::shared_ptr<const CompiledPlan> plan_;
  Memory64 state_, arena_;
  std::unique_ptr<Executor> executor_;
  std::vector<float> gradients_, inputs_;
  std::vector<int32_t> labels_;
};

void Compare(const std::string& file, const ModelSpec& model, const std::vector<int64_t>& shape,
             bool fuse) {
  Golden golden(file);
  Training training(model, shape, fuse);
  const std::vector<ParameterSpec>& parameters = training.plan().model().parameters();
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients;
  for (int step = 1; step <= kSteps; ++step) {
    losses.push_back(training.Step(step));
    for (const ParameterSpec& parameter : parameters) {
      if (step > 1) break;
      const float* g = training.Gradient(parameter.name);
      gradients.emplace_back(g, g + Elements(parameter.shape));
    }
  }
  const double loss = golden.Compare(losses.data(), kSteps);
  double gradient = 0, parameter_error = 0, statistic = 0;
  for (const std::vector<float>& g : gradients) {
    gradient = std::max(gradient, golden.Compare(g.data(), static_cast<int64_t>(g.size())));
  }
  for (const ParameterSpec& parameter : parameters) {
    parameter_error = std::max(
        parameter_error, golden.Compare(training.At(parameter.name), Elements(parameter.shape)));
  }
  for (const StatisticSpec& spec : training.plan().model().statistics()) {
    for (const char* what : {".running_mean", ".running_var"}) {
      statistic = std::max(statistic, golden.Compare(training.At(spec.name + what), spec.channels));
    }
    int64_t batches = 0;
    std::memcpy(&batches, training.At(spec.name + ".num_batches_tracked"), sizeof(batches));
    EXPECT_EQ(batches, kSteps);
  }
  const float evaluation = training.EvaluationLoss();
  const double evaluated = golden.Compare(&evaluation, 1);
  EXPECT_TRUE(golden.done());
  std::printf("%s fuse=%d: losses %.1e gradients %.1e parameters %.1e statistics %.1e eval %.1e\n",
              file.c_str(), fuse, loss, gradient, parameter_error, statistic, evaluated);
  for (const double error : {loss, gradient, parameter_error, statistic, evaluated}) {
    EXPECT_LE(error, 1e-4);
  }
}

TEST(GoldenImagesTest, CnnIsThatOfPyTorch) {
  const CnnSpec spec{.channels = {5, 9}, .kernel = 3, .batch_norm = true, .hidden = {17}};
  for (const bool fuse : {true, false}) Compare("cnn.f32", spec, {1, 12, 13}, fuse);
}

TEST(GoldenImagesTest, Resnet18IsThatOfPyTorch) {
  const ResnetSpec spec{.depth = 18, .stem = "imagenet", .zero_init = false, .width = 3};
  for (const bool fuse : {true, false}) Compare("resnet18.f32", spec, {3, 65, 61}, fuse);
}

}  // namespace
}  // namespace lockstep::engine
