// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/handoff.h"

#include <algorithm>
#include <utility>

namespace lockstep::coordinator {

bool Handoff::Give(FilePiece piece, const Gone& gone) {
  absl::MutexLock lock(&mu_);
  while (piece_.has_value() && !abandoned_) {
    changed_.WaitFor(&mu_, kLook);
    if (gone()) return false;
  }
  if (abandoned_) return false;
  piece_ = std::move(piece);
  changed_.NotifyAll();
  return true;
}

void Handoff::Close(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!closed_.has_value()) closed_ = why;
  changed_.NotifyAll();
}

absl::StatusOr<FilePiece> Handoff::Take(absl::Duration patience, const Gone& gone) {
  absl::MutexLock lock(&mu_);
  for (absl::Duration waited; !piece_.has_value(); waited += kLook) {
    if (closed_.has_value()) return *closed_;
    if (gone()) return absl::CancelledError("the caller is gone");
    if (waited >= patience) return absl::DeadlineExceededError("nothing came");
    changed_.WaitFor(&mu_, kLook);
  }
  FilePiece piece = *std::exchange(piece_, std::nullopt);
  changed_.NotifyAll();
  return piece;
}

void Handoff::Abandon() {
  absl::MutexLock lock(&mu_);
  abandoned_ = true;
  changed_.NotifyAll();
}

}  // namespace lockstep::coordinator
