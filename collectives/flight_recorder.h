// SPDX-License-Identifier: Apache-2.0
// The flight recorder: a ring of the last operations of this worker, 128 bytes each, always on. It
// tells which operation a rank is in, since when, whether everyone has come to it and for whom it
// waits. Thread-safety: Begin, Started, Waiting and End belong to one thread (the worker's main
// thread); Moved is thread-safe; Latest, Snapshot, Arrivals, LastCompleted and moves are
// thread-safe, never block the writer, and skip a record that is being changed.
#ifndef LOCKSTEP_COLLECTIVES_FLIGHT_RECORDER_H_
#define LOCKSTEP_COLLECTIVES_FLIGHT_RECORDER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/operation.h"

namespace lockstep {

// Where the rank is in an operation.
enum class OpStage : uint8_t {
  kArriving,  // waits for the others to make the call
  kMoving,    // everyone is there: data moves
  kDone,
  kFailed,
};

struct FlightRecord {
  uint64_t number = 0;  // counts the operations of this worker, from 1
  Operation operation;
  int64_t bytes = 0;
  int64_t enqueued_ns = 0;  // of Clock::Real; 0: not yet
  int64_t started_ns = 0;   // when all ranks had arrived
  int64_t ended_ns = 0;
  OpStage stage = OpStage::kArriving;
  int waiting_for = -1;  // rank, -1: none
  absl::StatusCode code = absl::StatusCode::kOk;
};

// How this worker came to its tree_reduces, of all generations.
struct ArrivalCounts {
  int64_t reductions = 0;
  int64_t last = 0;       // without waiting for anybody: the others were there
  int64_t waited_ns = 0;  // for the others to come, in all
};

// Returns whether every rank of the generation makes the call and counts it.
bool IsNumbered(OpKind kind);

// "all_reduce 4071 f32[25600000] sum fixed, waiting for rank 2 for 1.5s" and the like; `now_ns` as
// the stamps.
std::string ToString(const FlightRecord& record, int64_t now_ns);

class FlightRecorder {
 public:
  // Keeps the last `capacity` operations.
  explicit FlightRecorder(size_t capacity = 2048);

  // A new operation; the one before must have ended.
  void Begin(const Operation& operation, int64_t bytes);
  // All ranks have arrived.
  void Started();
  // The rank that the operation waits for; -1: none.
  void Waiting(int rank);
  void End(absl::StatusCode code);
  // Some of what an operation moves has moved: the rank does not stand still, however long the rest
  // takes.
  void Moved() { moves_.fetch_add(1, std::memory_order_relaxed); }

  // The newest operation, if there was one.
  std::optional<FlightRecord> Latest() const;
  // Oldest first, `limit` at most.
  std::vector<FlightRecord> Snapshot(size_t limit = SIZE_MAX) const;
  // The counts may be those of two neighbouring reductions.
  ArrivalCounts Arrivals() const;
  // How often something has moved, in all.
  int64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  // The sequence of the newest numbered call of `generation` that was completed; 0: none.
  int64_t LastCompleted(int64_t generation) const;

 private:
  static constexpr size_t kWords = 15;
  // `version` is odd while the record is being written (a sequence lock of relaxed atomics).
  struct alignas(64) Cell {
    std::atomic<uint64_t> version{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };
  static_assert(sizeof(Cell) == 128);

  void CountArrival();
  void Write();
  bool Read(uint64_t number, FlightRecord* record) const;

  std::vector<Cell> cells_;
  std::atomic<uint64_t> last_{0};  // number of the newest record
  FlightRecord current_;           // the writer's copy
  std::atomic<int64_t> reductions_{0};
  std::atomic<int64_t> arrived_last_{0};
  std::atomic<int64_t> waited_ns_{0};
  std::atomic<int64_t> moves_{0};
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> completed_generation_{0};
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_FLIGHT_RECORDER_H_
