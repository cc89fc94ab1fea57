// SPDX-License-Identifier: Apache-2.0
#include "collectives/flight_recorder.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/clock.h"

namespace lockstep {
namespace {

int64_t NowNanos() { return absl::ToUnixNanos(Clock::Real()->Now()); }

// FlightRecord without its padding, as it is kept.
struct Packed {
  uint64_t number;
  Operation operation;
  int64_t bytes;
  int64_t enqueued_ns;
  int64_t started_ns;
  int64_t ended_ns;
  int32_t waiting_for;
  uint16_t code;
  uint8_t stage;
  uint8_t reserved;
};
static_assert(sizeof(Packed) <= 15 * 8 && sizeof(Packed) % 8 == 0);
static_assert(std::is_trivially_copyable_v<Packed>);

}  // namespace

bool IsNumbered(OpKind kind) {
  return kind != OpKind::kNone && kind != OpKind::kWaitCommitted && kind != OpKind::kConnect &&
         kind != OpKind::kSend && kind != OpKind::kRecv;
}

std::string ToString(const FlightRecord& record, int64_t now_ns) {
  std::string text = ToString(record.operation);
  const auto since = [](int64_t from, int64_t to) {
    return absl::FormatDuration(absl::Nanoseconds(std::max<int64_t>(0, to - from)));
  };
  switch (record.stage) {
    case OpStage::kArriving:
    case OpStage::kMoving:
      if (record.waiting_for >= 0)
        absl::StrAppend(&text, ", waiting for rank ", record.waiting_for);
      absl::StrAppend(&text,
                      record.stage == OpStage::kArriving ? ", begun " : ", all there, begun ",
                      since(record.enqueued_ns, now_ns), " ago");
      break;
    case OpStage::kDone:
      absl::StrAppend(&text, ", completed ", since(record.ended_ns, now_ns), " ago");
      break;
    case OpStage::kFailed:
      absl::StrAppend(&text, ", failed (", absl::StatusCodeToString(record.code), ") ",
                      since(record.ended_ns, now_ns), " ago");
      break;
  }
  return text;
}

FlightRecorder::FlightRecorder(size_t capacity) : cells_(std::max<size_t>(capacity, 1)) {}

void FlightRecorder::Begin(const Operation& operation, int64_t bytes) {
  current_ = FlightRecord{};
  current_.number = last_.load(std::memory_order_relaxed) + 1;
  current_.operation = operation;
  current_.bytes = bytes;
  current_.enqueued_ns = NowNanos();
  Write();
  last_.store(current_.number, std::memory_order_release);
}

void FlightRecorder::Started() {
  current_.stage = OpStage::kMoving;
  current_.started_ns = NowNanos();
  if (current_.operation.kind == OpKind::kTreeReduce) CountArrival();
  current_.waiting_for = -1;
  Write();
}

// One thread writes: no read-modify-write is needed.
void FlightRecorder::CountArrival() {
  const auto add = [](std::atomic<int64_t>& sum, int64_t more) {
    sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  add(reductions_, 1);
  add(arrived_last_, current_.waiting_for < 0 ? 1 : 0);
  add(waited_ns_, std::max<int64_t>(0, current_.started_ns - current_.enqueued_ns));
}

ArrivalCounts FlightRecorder::Arrivals() const {
  return {reductions_.load(std::memory_order_relaxed),
          arrived_last_.load(std::memory_order_relaxed),
          waited_ns_.load(std::memory_order_relaxed)};
}

void FlightRecorder::Waiting(int rank) {
  if (current_.waiting_for == rank) return;
  current_.waiting_for = rank;
  Write();
}

void FlightRecorder::End(absl::StatusCode code) {
  current_.code = code;
  current_.stage = code == absl::StatusCode::kOk ? OpStage::kDone : OpStage::kFailed;
  current_.ended_ns = NowNanos();
  if (current_.stage == OpStage::kDone && IsNumbered(current_.operation.kind)) {
    completed_.store(current_.operation.sequence, std::memory_order_relaxed);
    completed_generation_.store(current_.operation.generation, std::memory_order_release);
  }
  Write();
}

int64_t FlightRecorder::LastCompleted(int64_t generation) const {
  if (completed_generation_.load(std::memory_order_acquire) != generation) return 0;
  return completed_.load(std::memory_order_relaxed);
}

void FlightRecorder::Write() {
  Packed packed{};
  packed.number = current_.number;
  packed.operation = current_.operation;
  packed.bytes = current_.bytes;
  packed.enqueued_ns = current_.enqueued_ns;
  packed.started_ns = current_.started_ns;
  packed.ended_ns = current_.ended_ns;
  packed.waiting_for = current_.waiting_for;
  packed.code = static_cast<uint16_t>(current_.code);
  packed.stage = static_cast<uint8_t>(current_.stage);
  uint64_t words[kWords] = {};
  std::memcpy(words, &packed, sizeof(packed));
  Cell& cell = cells_[current_.number % cells_.size()];
  const uint64_t version = cell.version.load(std::memory_order_relaxed);
  cell.version.store(version + 1, std::memory_order_relaxed);
  // Release stores keep the odd version before the words; readers pair with acquire loads.
  for (size_t i = 0; i < kWords; ++i) cell.words[i].store(words[i], std::memory_order_release);
  cell.version.store(version + 2, std::memory_order_release);
}

bool FlightRecorder::Read(uint64_t number, FlightRecord* record) const {
  const Cell& cell = cells_[number % cells_.size()];
  uint64_t words[kWords];
  const uint64_t before = cell.version.load(std::memory_order_acquire);
  if (before % 2 != 0) return false;
  for (size_t i = 0; i < kWords; ++i) words[i] = cell.words[i].load(std::memory_order_acquire);
  if (cell.version.load(std::memory_order_relaxed) != before) return false;
  Packed packed;
  std::memcpy(&packed, words, sizeof(packed));
  if (packed.number != number) return false;
  record->number = packed.number;
  record->operation = packed.operation;
  record->bytes = packed.bytes;
  record->enqueued_ns = packed.enqueued_ns;
  record->started_ns = packed.started_ns;
  record->ended_ns = packed.ended_ns;
  record->waiting_for = packed.waiting_for;
  record->code = static_cast<absl::StatusCode>(packed.code);
  record->stage = static_cast<OpStage>(packed.stage);
  return true;
}

std::optional<FlightRecord> FlightRecorder::Latest() const {
  FlightRecord record;
  // A few tries: the writer is in a record for nanoseconds only.
  for (int i = 0; i < 100; ++i) {
    const uint64_t last = last_.load(std::memory_order_acquire);
    if (last == 0) return std::nullopt;
    if (Read(last, &record)) return record;
  }
  return std::nullopt;
}

std::vector<FlightRecord> FlightRecorder::Snapshot(size_t limit) const {
  const uint64_t last = last_.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>({last, cells_.size(), limit});
  std::vector<FlightRecord> records;
  FlightRecord record;
  for (uint64_t number = last - kept + 1; number <= last; ++number) {
    if (Read(number, &record)) records.push_back(record);
  }
  return records;
}

}  // namespace lockstep
