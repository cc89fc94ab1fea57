// SPDX-License-Identifier: Apache-2.0
// What goes over a connection between two ranks: frames of a header and a payload. The header says
// which call of which generation it belongs to, and carries checksums of itself and of the payload,
// begun with a number that both ends of this one connection know: a flipped bit, a missing or a
// repeated frame and a frame of another connection are seen. Little-endian, as every machine that
// this runs on. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TCP_WIRE_H_
#define LOCKSTEP_COLLECTIVES_TCP_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/group_end.h"
#include "collectives/operation.h"

namespace lockstep {

enum class FrameKind : uint8_t {
  kCall = 1,   // the sender makes this call; its payload belongs to it
  kCalls,      // the ranks of the sender's node make different calls: an Operation of each
  kData,       // a part of what the call moves
  kMessage,    // a part of a Send
  kWaiting,    // the sender waits in this call for rank `part`
  kCommitted,  // the sender's state is that after step `offset`
  kGoodbye,    // the last frame
};

// Returns whether such frames carry what calls move, rather than words about it.
inline bool MovesData(FrameKind kind) {
  return kind == FrameKind::kData || kind == FrameKind::kMessage;
}

struct FrameHeader {
  FrameKind kind = FrameKind::kCall;
  DType dtype = DType::kUInt8;  // of the payload as it is sent
  uint64_t number = 0;          // counts the frames of one direction of one connection, from 1
  Operation operation;
  uint64_t offset = 0;  // where in the vector the payload lies, in elements; or as the kind says
  uint32_t bytes = 0;   // of the payload
  uint32_t part = 0;    // which of several payloads for one place
  uint64_t payload_hash = 0;
};

inline constexpr size_t kFrameBytes = 96;
inline constexpr uint32_t kWireVersion = 2;
inline constexpr uint32_t kMostPayload = 1 << 20;

// Writes `header` as kFrameBytes to `out`.
void EncodeFrame(const FrameHeader& header, uint64_t seed, char* out);

// The header in the kFrameBytes at `in`, which must be number `number` of `generation`. Errors:
// DataLoss saying what is wrong with it.
absl::StatusOr<FrameHeader> DecodeFrame(const char* in, uint64_t seed, uint64_t number,
                                        int64_t generation);

// The checksum of a payload.
uint64_t PayloadHash(const void* data, size_t bytes);

// ---- goodbyes ----
// Why a rank leaves, as its last frame tells it. Code kOk: it has done all it had to.
struct Goodbye {
  absl::StatusCode code = absl::StatusCode::kOk;
  GroupEnd end;
  std::string text;
  int64_t completed = 0;  // the newest numbered call that it has completed; 0: none
};
// Header and payload of the frame.
FrameHeader GoodbyeFrame(const Goodbye& goodbye, std::string* payload);
Goodbye ParseGoodbye(const FrameHeader& header, const std::string& payload);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_WIRE_H_
