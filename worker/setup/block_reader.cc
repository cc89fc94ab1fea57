// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/block_reader.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/round_up.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<BlockReader>> BlockReader::Create(const data::Dataset* dataset,
                                                                 engine::Executor* executor,
                                                                 int64_t block,
                                                                 ProgressBoard* board) {
  std::unique_ptr<BlockReader> reader(new BlockReader(dataset, executor, block, board));
  LS_RETURN_IF_ERROR(reader->Reserve());
  return reader;
}

BlockReader::BlockReader(const data::Dataset* dataset, engine::Executor* executor, int64_t block,
                         ProgressBoard* board)
    : dataset_(dataset),
      executor_(executor),
      block_(block),
      board_(board),
      places_(static_cast<size_t>(Held(executor->stages_blocks()))),
      indices_(static_cast<size_t>(block)) {}

absl::Status BlockReader::Reserve() {
  size_t bytes = 0;
  for (const FieldSpec& field : dataset_->fields()) {
    bytes += RoundUp(static_cast<size_t>(block_) * field.bytes(), kCacheLine);
  }
  LS_ASSIGN_OR_RETURN(memory_, MappedBytes::Anonymous(bytes * places_.size()));
  uint8_t* next = memory_.writable().data();
  for (Place& place : places_) {
    for (const FieldSpec& field : dataset_->fields()) {
      place.fields.push_back(next);
      place.read_only.push_back(next);
      next += RoundUp(static_cast<size_t>(block_) * field.bytes(), kCacheLine);
    }
  }
  locked_.emplace(executor_, memory_.writable().data(), memory_.size());
  return absl::OkStatus();
}

int64_t BlockReader::blocks() const { return DivideUp(dataset_->size(), block_); }

int64_t BlockReader::Valid(int64_t number) const {
  return std::min(block_, dataset_->size() - number * block_);
}

absl::Status BlockReader::Read(int64_t number, const Place& place) {
  std::optional<ProgressBoard::Part> reading;
  if (board_ != nullptr) reading.emplace(board_, IN_DATA_LOADER);
  const auto valid = static_cast<size_t>(Valid(number));
  std::iota(indices_.begin(), indices_.begin() + static_cast<int64_t>(valid), number * block_);
  return dataset_->ReadBatch({absl::MakeConstSpan(indices_.data(), valid)}, place.fields);
}

absl::Status BlockReader::ForEach(const Which& which, const Run& run) {
  const int64_t all = blocks();
  size_t at = 0;  // the place of the block that is run
  bool read = false, staged = false;
  for (int64_t number = which.first; number < all; number += which.stride) {
    if (!std::exchange(read, false)) LS_RETURN_IF_ERROR(Read(number, places_[at]));
    const Block block{number, number * block_, Valid(number), places_[at].read_only};
    const int64_t following = number + which.stride;
    const size_t other = (at + 1) % places_.size();
    for (int time = 0; time < which.times; ++time) {
      const bool again = time + 1 < which.times;
      engine::Inference::BlockHooks hooks;
      hooks.cancelled = which.cancelled;
      hooks.staged = std::exchange(staged, false);
      if (executor_->stages_blocks() && (again || following < all)) {
        hooks.meanwhile = [&, again] {
          if (!again) LS_RETURN_IF_ERROR(Read(following, places_[other]));
          read = !again;
          staged = true;
          return executor_->StageBlock(again ? block.fields : places_[other].read_only);
        };
      }
      LS_RETURN_IF_ERROR(run(block, hooks));
    }
    at = other;
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
