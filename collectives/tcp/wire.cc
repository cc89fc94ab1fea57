// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/hash_bytes.h"

namespace lockstep {
namespace {

constexpr uint32_t kMagic = 0x5446534c;  // "LSFT"
constexpr size_t kMostText = 2000;

// The header as it lies on the wire.
struct Packed {
  uint32_t magic;
  uint8_t kind;
  uint8_t payload_dtype;
  uint8_t call_kind;
  uint8_t call_dtype;
  uint8_t reduce;
  uint8_t order;
  uint16_t reserved;
  int32_t root;
  int64_t generation;
  int64_t sequence;
  int64_t count;
  int64_t step;
  int32_t bucket;
  uint32_t layout;
  uint64_t number;
  uint64_t offset;
  uint32_t bytes;
  uint32_t part;
  uint64_t payload_hash;
  uint64_t header_hash;  // of all before it
};
static_assert(sizeof(Packed) == kFrameBytes && std::is_trivially_copyable_v<Packed>);

uint64_t HeaderHash(const Packed& packed, uint64_t seed) {
  char text[sizeof(Packed)];
  std::memcpy(text, &packed, sizeof(packed));
  std::memcpy(text + offsetof(Packed, header_hash), &seed, sizeof(seed));
  return HashBytes(text, sizeof(text));
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("a frame is damaged: ", std::string(what)));
}

bool IsKnown(const Packed& packed) {
  return packed.kind >= static_cast<uint8_t>(FrameKind::kCall) &&
         packed.kind <= static_cast<uint8_t>(FrameKind::kGoodbye) &&
         packed.payload_dtype <= static_cast<uint8_t>(DType::kFloat16) &&
         packed.call_dtype <= static_cast<uint8_t>(DType::kFloat16) &&
         packed.call_kind <= static_cast<uint8_t>(OpKind::kBeginReduce) &&
         packed.reduce <= static_cast<uint8_t>(ReduceOp::kMin) &&
         packed.order <= static_cast<uint8_t>(ReduceOrder::kFastest);
}

}  // namespace

void EncodeFrame(const FrameHeader& header, uint64_t seed, char* out) {
  const Operation& call = header.operation;
  Packed packed{};
  packed.magic = kMagic;
  packed.kind = static_cast<uint8_t>(header.kind);
  packed.payload_dtype = static_cast<uint8_t>(header.dtype);
  packed.call_kind = static_cast<uint8_t>(call.kind);
  packed.call_dtype = static_cast<uint8_t>(call.dtype);
  packed.reduce = static_cast<uint8_t>(call.reduce);
  packed.order = static_cast<uint8_t>(call.order);
  packed.root = call.root;
  packed.generation = call.generation;
  packed.sequence = call.sequence;
  packed.count = call.count;
  packed.step = call.step;
  packed.bucket = call.bucket;
  packed.layout = call.layout;
  packed.number = header.number;
  packed.offset = header.offset;
  packed.bytes = header.bytes;
  packed.part = header.part;
  packed.payload_hash = header.payload_hash;
  packed.header_hash = HeaderHash(packed, seed);
  std::memcpy(out, &packed, sizeof(packed));
}

absl::StatusOr<FrameHeader> DecodeFrame(const char* in, uint64_t seed, uint64_t number,
                                        int64_t generation) {
  Packed packed;
  std::memcpy(&packed, in, sizeof(packed));
  if (packed.magic != kMagic) return Damaged("it does not begin as one");
  if (packed.header_hash != HeaderHash(packed, seed)) return Damaged("the header's checksum");
  if (packed.number != number) {
    return Damaged(absl::StrCat("it is number ", packed.number, " where ", number, " was due"));
  }
  if (packed.generation != generation) {
    return Damaged(absl::StrCat("it is of generation ", packed.generation));
  }
  if (!IsKnown(packed) || packed.bytes > kMostPayload) return Damaged("it is of no known kind");
  FrameHeader header;
  header.kind = static_cast<FrameKind>(packed.kind);
  header.dtype = static_cast<DType>(packed.payload_dtype);
  Operation& call = header.operation;
  call.kind = static_cast<OpKind>(packed.call_kind);
  call.dtype = static_cast<DType>(packed.call_dtype);
  call.reduce = static_cast<ReduceOp>(packed.reduce);
  call.order = static_cast<ReduceOrder>(packed.order);
  call.root = packed.root;
  call.generation = packed.generation;
  call.sequence = packed.sequence;
  call.count = packed.count;
  call.step = packed.step;
  call.bucket = packed.bucket;
  call.layout = packed.layout;
  header.number = packed.number;
  header.offset = packed.offset;
  header.bytes = packed.bytes;
  header.part = packed.part;
  header.payload_hash = packed.payload_hash;
  return header;
}

uint64_t PayloadHash(const void* data, size_t bytes) {
  return bytes == 0 ? 0 : HashBytes(data, bytes);
}

FrameHeader GoodbyeFrame(const Goodbye& goodbye, std::string* payload) {
  *payload = goodbye.text.substr(0, kMostText);
  FrameHeader header;
  header.kind = FrameKind::kGoodbye;
  header.operation.sequence = goodbye.completed;
  header.part = static_cast<uint32_t>(goodbye.code);
  header.offset =
      static_cast<uint64_t>(goodbye.end.cause) << 32 | static_cast<uint32_t>(goodbye.end.rank);
  header.bytes = static_cast<uint32_t>(payload->size());
  header.payload_hash = PayloadHash(payload->data(), payload->size());
  return header;
}

Goodbye ParseGoodbye(const FrameHeader& header, const std::string& payload) {
  Goodbye goodbye;
  goodbye.code = static_cast<absl::StatusCode>(
      std::min<uint32_t>(header.part, static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)));
  goodbye.end.cause = static_cast<EndCause>(
      std::min<uint64_t>(header.offset >> 32, static_cast<uint64_t>(EndCause::kDamaged)));
  goodbye.end.rank = static_cast<int32_t>(header.offset & 0xffffffff);
  goodbye.text = payload;
  goodbye.completed = header.operation.sequence;
  return goodbye;
}

}  // namespace lockstep
