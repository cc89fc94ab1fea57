// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/batches.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/float8.h"
#include "common/hash_bytes.h"
#include "common/philox.h"
#include "engine/models/initialise.h"
#include "engine/passes/buckets.h"

namespace lockstep::engine {

absl::Status CheckIntegers(const TrainSpec& spec, Fields fields, int64_t samples) {
  const std::vector<FieldSpec>& specs = spec.input.fields;
  LS_CHECK_EQ(fields.size(), specs.size());
  for (size_t f = 0; f < specs.size(); ++f) {
    if (specs[f].type != FieldSpec::Type::kInt32 || specs[f].limit == 0) continue;
    const auto* values = static_cast<const int32_t*>(fields[f]);
    const int64_t each = specs[f].elements();
    for (int64_t i = 0; i < samples * each; ++i) {
      if (values[i] < specs[f].limit) continue;
      return absl::DataLossError(absl::StrCat(
          "'", specs[f].name, "' of sample ", i / each, " of the batch is ", values[i],
          ", but the model takes numbers below ", specs[f].limit, ": check the data or the model"));
    }
  }
  return absl::OkStatus();
}

void MadeBatch::Free::operator()(std::byte* pointer) const { std::free(pointer); }

absl::StatusOr<MadeBatch> MadeBatch::Make(const TrainSpec& spec) {
  MadeBatch batch;
  for (const FieldSpec& field : spec.input.fields) {
    const int64_t count = spec.micro_batch * field.elements();
    const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + 63) / 64 * 64;
    batch.memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
    std::byte* const memory = batch.memory_.back().get();
    if (memory == nullptr) {
      return absl::ResourceExhaustedError("no memory for the device check's micro-batch");
    }
    batch.fields_.push_back(memory);
    if (field.type == FieldSpec::Type::kFloat32) {
      Initialise({"device_hash." + field.name, {count}, ParameterSpec::Init::kUniform, 1},
                 spec.seed, reinterpret_cast<float*>(memory));
      continue;
    }
    const auto limit = static_cast<uint64_t>(field.limit > 0 ? field.limit : 2);
    auto* values = reinterpret_cast<int32_t*>(memory);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<int32_t>(MixBits(static_cast<uint64_t>(i)) % limit);
    }
  }
  return batch;
}

std::string HashOfGradients(float* gradients, int64_t count) {
  const float nan = FloatOfBits(0xffc00000);  // which x86 makes of an invalid operation
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(gradients[i])) gradients[i] = nan;
  }
  return absl::StrFormat("%016x", HashBytes(gradients, static_cast<size_t>(count) * sizeof(float)));
}

std::vector<std::pair<int64_t, int64_t>> GapsOf(const GradientLayout& layout) {
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t at = 0;
  for (const GradientSlot& slot : layout.slots) {
    if (slot.begin > at) gaps.emplace_back(at, slot.begin);
    at = slot.begin + slot.count;
  }
  // All of the tail: the loss and the count are then written over.
  gaps.emplace_back(at, layout.count);
  return gaps;
}

}  // namespace lockstep::engine
