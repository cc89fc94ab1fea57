// SPDX-License-Identifier: Apache-2.0
// The made batch of the benchmark programs, the same in every run. Thread-safety: immutable.
#ifndef LOCKSTEP_BENCH_BATCH_H_
#define LOCKSTEP_BENCH_BATCH_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/timing.h"
#include "common/philox.h"
#include "engine/engine.h"

namespace lockstep::bench {

// `samples` samples of a job: fp32 values uniform in [-1, 1), integers spread over their range.
class Batch {
 public:
  Batch(const engine::TrainSpec& spec, int64_t samples) {
    for (const FieldSpec& field : spec.input.fields) {
      const int64_t count = samples * field.elements();
      memory_.push_back(Allocate<float>(static_cast<size_t>(count)));
      bytes_.push_back(static_cast<size_t>(count) * sizeof(float));
      float* values = memory_.back().get();
      fields_.push_back(values);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t bits = MixBits(static_cast<uint64_t>(i) * 2 + fields_.size());
        if (field.type == FieldSpec::Type::kFloat32) {
          values[i] = static_cast<float>(bits >> 40) * 0x1p-23f - 1;
        } else {
          const auto value = static_cast<int32_t>(bits % static_cast<uint64_t>(field.limit));
          std::memcpy(values + i, &value, sizeof value);
        }
      }
    }
  }
  engine::Fields fields() const { return fields_; }
  // As a worker has its batches: a device copies them from where they lie. `executor` outlives
  // this.
  void Lock(engine::Executor* executor) {
    for (size_t f = 0; f < memory_.size(); ++f) {
      locked_.push_back(
          std::make_unique<engine::LockedFields>(executor, memory_[f].get(), bytes_[f]));
    }
  }

 private:
  std::vector<Memory<float>> memory_;
  std::vector<const void*> fields_;
  std::vector<size_t> bytes_;
  std::vector<std::unique_ptr<engine::LockedFields>> locked_;
};

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_BATCH_H_
