// SPDX-License-Identifier: Apache-2.0
// What lies in an arena: the header with all words by which its owner speaks to its peers, the
// pieces through which foreign buffers are passed, and the heap of Transport::Allocate. Only the
// owner writes; peers map it read-only.
//
// All synchronisation of the collectives is one word: phase = {generation, tick}. A rank publishes
// a tick with release order after it has written what the tick stands for. Each collective is a
// fixed sequence of ticks, the same on every rank, and every rank waits for everyone at each tick.
// So whoever has seen all at tick t knows that everyone has finished reading what was written for t
// - 1. What is written for tick t lies in place t mod 3: it is written again for t + 3, two full
// exchanges later, which leaves a reader of t its time even when the next exchange overlaps the
// reading.
//
// Thread-safety: as each field says.
#ifndef LOCKSTEP_COLLECTIVES_SHM_LAYOUT_H_
#define LOCKSTEP_COLLECTIVES_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/operation.h"

namespace lockstep {

inline constexpr uint64_t kArenaMagic = 0x314d48534b434f4c;  // "LOCKSHM1"
inline constexpr uint32_t kLayoutVersion = 3;
inline constexpr int kMaxRanksOfHost = 512;
inline constexpr int kMaxNodes = 64;  // whole nodes of one rank: at most 2 log2(shards)
inline constexpr int kPlaces = 3;
inline constexpr size_t kChunkBytes = 256 << 10;
inline constexpr size_t kSmallBytes = 8 << 10;  // up to here one exchange does it all
inline constexpr int kMessagePlaces = 2;

// A word of {generation: 24 bits, value: 40 bits}.
constexpr uint64_t PackStamp(int64_t generation, uint64_t value) {
  return (static_cast<uint64_t>(generation) & 0xffffff) << 40 | (value & 0xffffffffffULL);
}
// The generation of such a word: its low 24 bits.
constexpr int64_t StampGeneration(uint64_t stamp) { return static_cast<int64_t>(stamp >> 40); }
// The value of such a word.
constexpr uint64_t StampValue(uint64_t stamp) { return stamp & 0xffffffffffULL; }

struct NodeEntry {
  int32_t begin = 0;
  int32_t end = 0;
  uint64_t offset = 0;  // of its data, from the arena's start
};

// One call of a collective, as its rank announces it.
struct CallSlot {
  static constexpr uint64_t kForeign = UINT64_MAX;
  Operation operation;
  uint64_t buffer = kForeign;  // offset of the (input) buffer when it lies in the arena
  uint64_t owned = kForeign;   // kTreeReduce: offset of the owned slice
  uint32_t node_count = 0;
  NodeEntry nodes[kMaxNodes];
};

// One chunk of a message.
struct MessageSlot {
  Operation operation;  // root: the receiver
  uint64_t chunk_bytes = 0;
};

struct RankHeader {
  // Written once, before the descriptor is given away.
  uint64_t magic = kArenaMagic;
  uint32_t version = kLayoutVersion;
  uint32_t header_bytes = 0;
  uint64_t arena_bytes = 0;

  // {generation, tick}.
  alignas(64) std::atomic<uint64_t> phase{0};
  // Counts everything that this rank has published: what peers sleep on.
  std::atomic<uint32_t> bell{0};
  // The CPU on which this rank published last, a hint: spinning there for it would keep it waiting.
  std::atomic<int32_t> cpu{-1};
  // This rank sleeps on some peer's bell, so publishers have to wake.
  alignas(64) std::atomic<uint32_t> sleeping{0};
  // {generation, committed step + 1}.
  alignas(64) std::atomic<uint64_t> committed{0};
  // {operation kind: 8 bits, sequence: 56 bits} of the last one completed.
  std::atomic<uint64_t> completed{0};
  // {generation, rank << 20 | world size} of the generation that this rank has joined.
  std::atomic<uint64_t> membership{0};
  // {generation, rank + 1} of the peer whose death ended that generation for this rank: whoever
  // finds this rank dead later knows that it was a victim.
  std::atomic<uint64_t> accused{0};
  // {generation, 1} when this rank has left it after all its calls: its death afterwards is
  // nobody's misfortune.
  std::atomic<uint64_t> left{0};

  // Messages: a chunk lies in a place until its receiver has acknowledged it. The stamp is
  // {generation, receiver << 28 | index}, index counting the chunks from this rank to that receiver
  // from 1.
  alignas(64) std::atomic<uint64_t> message_stamp[kMessagePlaces] = {};
  MessageSlot messages[kMessagePlaces];
  // acknowledged[r]: {generation, chunks received from rank r}; value kRefused: the calls differ,
  // and `refused` is this rank's call.
  static constexpr uint64_t kRefused = 0xffffffffffULL;
  std::atomic<uint64_t> acknowledged[kMaxRanksOfHost] = {};
  Operation refused;

  CallSlot calls[kPlaces];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr size_t kHeaderGrain = 4096;
inline constexpr size_t kHeaderBytes =
    (sizeof(RankHeader) + kHeaderGrain - 1) / kHeaderGrain * kHeaderGrain;
inline constexpr size_t kChunksOffset = kHeaderBytes;
inline constexpr size_t kMessagesOffset = kChunksOffset + kPlaces * kChunkBytes;
inline constexpr size_t kHeapOffset = kMessagesOffset + kMessagePlaces * kChunkBytes;

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_LAYOUT_H_
