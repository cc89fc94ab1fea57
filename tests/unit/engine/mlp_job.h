// SPDX-License-Identifier: Apache-2.0
// A small job for the engine's tests: memory, batches and one shard after the other.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_MLP_JOB_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_MLP_JOB_H_

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "common/check.h"
#include "common/philox.h"
#include "engine/engine.h"

namespace lockstep::engine {

inline TrainSpec SmallMlp() {
  TrainSpec spec;
  spec.model = MlpSpec{{33}};
  spec.input = ClassificationInput({31}, 10);
  spec.optimizer = SgdSpec{.lr = 0.1, .momentum = 0.9};
  spec.micro_batch = 16;
  spec.shards = 4;
  spec.eval_block = 20;
  spec.seed = 7;
  return spec;
}

// Page-aligned floats.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096 + 4096) {
    data_ = std::aligned_alloc(4096, bytes_);
    std::memset(data_, 0, bytes_);
  }
  ~Pages() { std::free(data_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* data() { return data_; }
  float* floats() { return static_cast<float*>(data_); }
  void FillWithNan() {
    for (size_t i = 0; i < bytes_ / 4; ++i) floats()[i] = std::numeric_limits<float>::quiet_NaN();
  }

 private:
  size_t bytes_;
  void* data_;
};

struct TestBatch {
  std::vector<float> inputs;
  std::vector<int32_t> labels;
  std::array<const void*, 2> fields() const { return {inputs.data(), labels.data()}; }
};

// A function of (step, shard); the label shows in the inputs.
inline TestBatch MakeBatch(const TrainSpec& spec, int64_t step, int shard, int micro = 0,
                           int64_t samples = -1) {
  int64_t width = 1;
  for (const int64_t extent : spec.input.fields[0].shape) width *= extent;
  if (samples < 0) samples = spec.micro_batch;
  TestBatch batch;
  for (int64_t i = 0; i < samples; ++i) {
    const auto address = static_cast<uint64_t>(((step * 64 + shard) * 8 + micro) * 4096 + i);
    const uint64_t hash = MixBits(address);
    const auto label = static_cast<int32_t>(hash % static_cast<uint64_t>(spec.input.classes));
    batch.labels.push_back(label);
    for (int64_t j = 0; j < width; ++j) {
      const uint64_t noise = MixBits(address * 8192 + static_cast<uint64_t>(j));
      const uint64_t base = MixBits(static_cast<uint64_t>(label) * 8192 + static_cast<uint64_t>(j));
      batch.inputs.push_back(UniformFloat(static_cast<uint32_t>(noise)) * 0.5f +
                             UniformFloat(static_cast<uint32_t>(base)) - 0.75f);
    }
  }
  return batch;
}

struct Job {
  explicit Job(const TrainSpec& spec)
      : plan(Plan::Compile(spec).value()),
        state(plan->state_bytes()),
        arena(plan->arena_bytes()),
        executor(Executor::Create(plan, {state.data(), arena.data()}).value()) {
    executor->InitState();
  }

  // All micro-batches of one shard.
  absl::Status RunShard(int64_t step, int shard, float* gradients,
                        const Executor::Hooks& hooks = {}) {
    for (int micro = 0; micro < plan->spec().accumulate; ++micro) {
      const TestBatch batch = MakeBatch(plan->spec(), step, shard, micro);
      const absl::Status status =
          executor->RunShard(step, shard, micro, batch.fields(), gradients, hooks);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Leaf gradients of all shards, summed along the tree of DESIGN.md section 3.
  void SumShards(int64_t step, int begin, int end, float* out) {
    if (end - begin == 1) {
      LS_CHECK(RunShard(step, begin, out).ok());
      return;
    }
    int half = 1;
    while (half * 2 < end - begin) half *= 2;
    const auto count = static_cast<size_t>(plan->gradient_count());
    Pages right(count * 4);
    SumShards(step, begin, begin + half, out);
    SumShards(step, begin + half, end, right.floats());
    for (size_t i = 0; i < count; ++i) out[i] += right.floats()[i];
  }

  StepResult Step(int64_t step) {
    Pages sum(static_cast<size_t>(plan->gradient_count()) * 4);
    SumShards(step, 0, plan->spec().shards, sum.floats());
    const GradientSlice whole{0, plan->gradient_count(), sum.floats()};
    return executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
  }

  std::vector<char> StateBytes() const {
    const char* bytes = static_cast<const char*>(const_cast<Pages&>(state).data());
    return {bytes, bytes + plan->state_bytes()};
  }
  template <typename T>
  T Scalar(const std::string& name) {
    for (const StateEntry& entry : plan->state()) {
      if (entry.name == name) {
        return *reinterpret_cast<T*>(static_cast<char*>(state.data()) + entry.offset);
      }
    }
    LS_CHECK(false) << name;
    return T();
  }

  std::shared_ptr<const Plan> plan;
  Pages state;
  Pages arena;
  std::unique_ptr<Executor> executor;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_MLP_JOB_H_
