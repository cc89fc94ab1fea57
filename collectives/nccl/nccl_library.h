// SPDX-License-Identifier: Apache-2.0
// NCCL, loaded when a job wants it: from $LOCKSTEP_NCCL_LIBRARY, else from where the loader, the
// CUDA toolkit and Python's wheels have it. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_LIBRARY_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/nccl/nccl_api.h"

namespace lockstep {

struct NcclLibrary {
  NcclApi api;
  int version = 0;   // 22809 is 2.28.9
  std::string path;  // where it was found

  // "NCCL 2.28.9".
  std::string name() const;
  // Returns what of the newer interface it has: "revoke, shrink, windows, no grow".
  std::string features() const;
};

// The library of this process, loaded at the first call. Environment variables of NCCL count if
// they are set before. Errors: FailedPrecondition that says where it was looked for, or that it is
// older than 2.18; the same at each call.
absl::StatusOr<const NcclLibrary*> LoadNccl();

// OK for kNcclSuccess, which `what` came to. Otherwise Aborted when a peer or the network failed
// (another generation may work), Internal for the rest; with NCCL's own words.
absl::Status NcclStatus(const NcclApi& api, NcclComm comm, NcclResult result,
                        const std::string& what);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_LIBRARY_H_
