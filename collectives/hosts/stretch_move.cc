// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/stretch_move.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kFrame = 256 << 10;

// The stretch of `rank` that is not done; null: none.
template <typename Stretches>
auto* Open(Stretches& stretches, int rank) {
  const auto it = std::find_if(stretches.begin(), stretches.end(), [&](const Stretch& stretch) {
    return stretch.rank == rank && stretch.done < stretch.bytes;
  });
  return it == stretches.end() ? nullptr : &*it;
}

}  // namespace

StretchMove::StretchMove(HostsContext* context, const Operation& operation, uint64_t number,
                         std::vector<Stretch> sends, std::vector<Stretch> receives)
    : HostsCall(context, operation),
      number_(static_cast<uint32_t>(number)),
      sends_(std::move(sends)),
      receives_(std::move(receives)) {
  SkipCalls();
}

bool StretchMove::NextData(int rank, OutgoingFrame* frame) {
  Stretch* const send = Open(sends_, rank);
  if (send == nullptr) return false;
  frame->header = FrameHeader{};
  frame->header.kind = FrameKind::kData;
  frame->header.operation = operation();
  frame->header.offset = send->done;
  frame->header.part = number_;
  frame->header.bytes = static_cast<uint32_t>(std::min(kFrame, send->bytes - send->done));
  frame->payload = send->data + send->done;
  send->done += frame->header.bytes;
  return true;
}

absl::StatusOr<char*> StretchMove::PlaceData(int rank, const FrameHeader& header) {
  const Stretch* const receive = Open(receives_, rank);
  if (receive == nullptr) return nullptr;  // of the next move
  if (header.part == number_ && header.offset == receive->done &&
      header.bytes <= receive->bytes - receive->done) {
    return receive->data + receive->done;
  }
  return Unexpected(rank, header);
}

absl::Status StretchMove::ArrivedData(int rank, const FrameHeader& header) {
  Open(receives_, rank)->done += header.bytes;
  return absl::OkStatus();
}

bool StretchMove::DataDone() const {
  const auto done = [](const Stretch& stretch) { return stretch.done == stretch.bytes; };
  return std::all_of(sends_.begin(), sends_.end(), done) &&
         std::all_of(receives_.begin(), receives_.end(), done);
}

bool StretchMove::WaitsForData(int rank) const {
  return Open(sends_, rank) != nullptr || Open(receives_, rank) != nullptr;
}

}  // namespace lockstep
