// SPDX-License-Identifier: Apache-2.0
// Hands pieces of files from one thread to another, one at a time: who gives waits until the piece
// before was taken.
// Thread-safety: one thread gives, one takes.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_HANDOFF_H_
#define LOCKSTEP_COORDINATOR_SERVICE_HANDOFF_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "proto/files.pb.h"

namespace lockstep::coordinator {

class Handoff {
 public:
  // How often `gone` is asked while somebody waits.
  static constexpr absl::Duration kLook = absl::Milliseconds(100);
  using Gone = std::function<bool()>;

  // Blocks until the piece before was taken. False: nobody takes any more, or `gone` says so of the
  // caller's own peer.
  bool Give(FilePiece piece, const Gone& gone);
  // Nothing more comes; `why` is what a Take without a piece returns.
  void Close(const absl::Status& why);
  // Blocks until there is a piece, for `patience` at most. Errors: DeadlineExceeded; Cancelled when
  // `gone` says that the caller's own peer is; what Close said.
  absl::StatusOr<FilePiece> Take(absl::Duration patience, const Gone& gone);
  // Nobody takes any more.
  void Abandon();

 private:
  absl::Mutex mu_;
  CondVar changed_;
  std::optional<FilePiece> piece_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_HANDOFF_H_
