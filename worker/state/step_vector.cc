// SPDX-License-Identifier: Apache-2.0
#include "worker/state/step_vector.h"

#include <algorithm>

#include "common/status.h"

namespace lockstep::worker {

std::vector<ElementRange> ReductionParts(absl::Span<const engine::Bucket> buckets) {
  const int64_t least = buckets.empty() ? 0 : buckets.back().end / kMostParts;
  std::vector<ElementRange> parts;
  for (const engine::Bucket& bucket : buckets) {
    if (parts.empty() || parts.back().size() >= least) {
      parts.push_back({bucket.begin, bucket.end});
    } else {
      parts.back().end = bucket.end;
    }
  }
  return parts;
}

StepVector::StepVector(int shards, int64_t gradients, VectorMemory* memory)
    : shards_(shards),
      gradients_(gradients),
      memory_(memory),
      header_(static_cast<size_t>(StepHeader::Count(shards))) {}

absl::StatusOr<std::vector<float*>> StepVector::Reserve(int buffers) {
  std::vector<float*> vectors;
  for (int i = 0; i < buffers; ++i) {
    LS_ASSIGN_OR_RETURN(float* const vector, memory_->Allocate(count(), "a gradient buffer"));
    vectors.push_back(vector);
  }
  return vectors;
}

absl::Status StepVector::WriteHeader(int shard, uint64_t ids_hash, const StepHeader::Wishes& wishes,
                                     float* leaf) {
  StepHeader::Write(shards_, shard, ids_hash, wishes, header_.data());
  return memory_->Write(leaf + gradients_, header_.data(), static_cast<int64_t>(header_.size()));
}

absl::Status StepVector::ReadHeader(absl::Span<const Slice> reduced,
                                    StepHeader::Contents* contents) {
  for (const Slice& slice : reduced) {
    const int64_t first = std::max(gradients_, slice.begin);
    if (first >= slice.end) continue;
    LS_RETURN_IF_ERROR(memory_->Read(header_.data() + (first - gradients_),
                                     slice.data + (first - slice.begin), slice.end - first));
  }
  const Slice whole{gradients_, count(), header_.data()};
  StepHeader::Read(shards_, gradients_, absl::MakeConstSpan(&whole, 1), contents);
  return absl::OkStatus();
}

absl::StatusOr<std::string> StepVector::DeviceHash(engine::Training* executor, float* leaf) const {
  if (memory_->on_host()) return executor->DeviceHash(leaf);
  std::vector<float> gradients(static_cast<size_t>(gradients_));
  return executor->DeviceHash(gradients.data());
}

}  // namespace lockstep::worker
