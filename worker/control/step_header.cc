// SPDX-License-Identifier: Apache-2.0
#include "worker/control/step_header.h"

#include <algorithm>

#include "common/round_up.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kWishes = 16;  // floats before the hashes
constexpr int kPartsOfHash = 4;  // of 16 bits each: exact in a float
constexpr int64_t kAlignment = 16;

// Element `index` of the reduced vector.
float At(absl::Span<const Slice> reduced, int64_t index) {
  for (const Slice& slice : reduced) {
    if (index < slice.end) return slice.data[index - slice.begin];
  }
  return 0;
}

}  // namespace

int64_t StepHeader::Count(int shards) {
  const int64_t count = kWishes + int64_t{kPartsOfHash} * shards;
  return RoundUp(count, kAlignment);
}

void StepHeader::Write(int shards, int shard, uint64_t ids_hash, const Wishes& wishes,
                       float* header) {
  std::fill_n(header, Count(shards), 0.0f);
  header[0] = wishes.drain ? 1.0f : 0.0f;
  header[1] = wishes.save ? 1.0f : 0.0f;
  header[2] = wishes.regroup ? 1.0f : 0.0f;
  header[3] = wishes.part == SavedPart::kDurable ? 1.0f : 0.0f;
  header[4] = wishes.part == SavedPart::kFailed ? 1.0f : 0.0f;
  for (int part = 0; part < kPartsOfHash; ++part) {
    header[kWishes + kPartsOfHash * shard + part] =
        static_cast<float>((ids_hash >> (16 * part)) & 0xFFFF);
  }
}

void StepHeader::Read(int shards, int64_t begin, absl::Span<const Slice> reduced,
                      Contents* contents) {
  contents->drain = At(reduced, begin) != 0;
  contents->save = At(reduced, begin + 1) != 0;
  contents->regroup = At(reduced, begin + 2) != 0;
  contents->parts_durable = static_cast<int>(At(reduced, begin + 3));
  contents->parts_failed = static_cast<int>(At(reduced, begin + 4));
  contents->ids_hash.resize(shards);
  for (int shard = 0; shard < shards; ++shard) {
    uint64_t hash = 0;
    for (int part = 0; part < kPartsOfHash; ++part) {
      const float value = At(reduced, begin + kWishes + kPartsOfHash * shard + part);
      hash |= static_cast<uint64_t>(value) << (16 * part);
    }
    contents->ids_hash[shard] = hash;
  }
}

}  // namespace lockstep::worker
