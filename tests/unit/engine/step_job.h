// SPDX-License-Identifier: Apache-2.0
// Small jobs of each kind of model, with made batches of whatever fields they have: for tests of
// what holds for every model (precision, recomputation).
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_STEP_JOB_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_STEP_JOB_H_

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {

inline TrainSpec DeepMlp() {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{40, 33, 48, 40, 33}};
  spec.clip_norm = 1;
  return spec;
}

// Batch norm, accumulation and clipping.
inline TrainSpec NormedCnn() {
  TrainSpec spec = SmallMlp();
  spec.model = CnnSpec{.channels = {5, 18}, .kernel = 3, .batch_norm = true, .hidden = {17}};
  spec.input = ClassificationInput({3, 9, 8}, 10);
  spec.accumulate = 2;
  spec.micro_batch = 6;
  spec.clip_norm = 0.5;
  return spec;
}

inline TrainSpec TinyResnet() {
  TrainSpec spec = NormedCnn();
  spec.model = ResnetSpec{.depth = 18, .stem = "cifar", .zero_init = false, .width = 3};
  return spec;
}

// Dropout and a tied head.
inline TrainSpec TinyGpt() {
  TrainSpec spec = SmallMlp();
  GptSpec& gpt = spec.model.emplace<GptSpec>();
  gpt.layers = 3;
  gpt.heads = 2;
  gpt.width = 24;
  gpt.vocab = 32;
  gpt.dropout = 0.2;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {9}, 29}, {"labels", type, {9}, 29}}, 29};
  spec.optimizer = AdamSpec{.lr = 1e-2, .decoupled = true};
  spec.micro_batch = 4;
  spec.accumulate = 2;
  spec.eval_block = 4;
  spec.clip_norm = 1;
  return spec;
}

inline TrainSpec TinyBert() {
  TrainSpec spec = TinyGpt();
  BertSpec& bert = spec.model.emplace<BertSpec>();
  bert.layers = 2;
  bert.heads = 2;
  bert.width = 24;
  bert.vocab = 32;
  bert.dropout = 0.2;
  return spec;
}

// A function of (step, shard, micro-batch): inputs in [-1, 1), integers below their limits.
class AnyBatch {
 public:
  AnyBatch(const TrainSpec& spec, int64_t step, int shard, int micro, int64_t samples) {
    values_.resize(spec.input.fields.size());
    for (size_t f = 0; f < values_.size(); ++f) {
      const FieldSpec& field = spec.input.fields[f];
      values_[f].resize(static_cast<size_t>(samples * field.elements()));
      for (size_t i = 0; i < values_[f].size(); ++i) {
        const auto address = static_cast<uint64_t>((step * 64 + shard) * 8 + micro) * 8 + f;
        const uint64_t bits = MixBits(address * (1 << 20) + i);
        if (field.type == FieldSpec::Type::kInt32) {
          values_[f][i] = static_cast<uint32_t>(bits % static_cast<uint64_t>(field.limit));
        } else {
          const float x = UniformFloat(static_cast<uint32_t>(bits)) * 2 - 1;
          std::memcpy(&values_[f][i], &x, sizeof(x));
        }
      }
      fields_.push_back(values_[f].data());
    }
  }
  Fields fields() const { return fields_; }

 private:
  std::vector<std::vector<uint32_t>> values_;
  std::vector<const void*> fields_;
};

// All micro-batches of one shard, on an arena that is full of NaN.
inline std::vector<float> PoisonedGradients(Job* job, int64_t step, int shard) {
  const TrainSpec& spec = job->plan->spec();
  std::vector<float> out(static_cast<size_t>(job->plan->gradient_count()),
                         std::numeric_limits<float>::quiet_NaN());
  job->arena.FillWithNan();
  for (int micro = 0; micro < spec.accumulate; ++micro) {
    const AnyBatch batch(spec, step, shard, micro, spec.micro_batch);
    LS_CHECK(job->executor->RunShard(step, shard, micro, batch.fields(), out.data(), {}).ok());
  }
  return out;
}

inline std::vector<float> SumOf(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline StepResult UpdateWith(Job* job, int64_t step, const std::vector<float>& gradients) {
  const GradientSlice whole{0, job->plan->gradient_count(), gradients.data()};
  return job->executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
}

// A whole step of a job of four shards.
inline StepResult WholeStep(Job* job, int64_t step) {
  const std::vector<float> left =
      SumOf(PoisonedGradients(job, step, 0), PoisonedGradients(job, step, 1));
  const std::vector<float> right =
      SumOf(PoisonedGradients(job, step, 2), PoisonedGradients(job, step, 3));
  return UpdateWith(job, step, SumOf(left, right));
}

inline bool EqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A kind of model in a precision: what the suites over all models are instantiated with.
struct ModelCase {
  const char* name;
  TrainSpec (*spec)();
};
inline constexpr ModelCase kModelCases[] = {{"mlp", DeepMlp},
                                            {"cnn", NormedCnn},
                                            {"resnet", TinyResnet},
                                            {"gpt", TinyGpt},
                                            {"bert", TinyBert}};

// Those with linear layers between the first and the last one: "fp8" is bf16 with fp8 too.
inline constexpr ModelCase kFp8ModelCases[] = {
    {"mlp", DeepMlp}, {"cnn", NormedCnn}, {"gpt", TinyGpt}, {"bert", TinyBert}};

class EveryModelTest : public testing::TestWithParam<std::tuple<ModelCase, std::string>> {
 protected:
  static TrainSpec Spec() {
    TrainSpec spec = std::get<0>(GetParam()).spec();
    spec.precision = std::get<1>(GetParam());
    spec.fp8 = spec.precision == "fp8";
    if (spec.fp8) spec.precision = "bf16";
    return spec;
  }
};

inline std::string NameOf(const testing::TestParamInfo<EveryModelTest::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_STEP_JOB_H_
