// SPDX-License-Identifier: Apache-2.0
// Packs a folder and unpacks it elsewhere (proto/package.proto). The same files are the same bytes,
// whenever and by whomever they are packed: names in order, of modes the executable bit alone, no
// times. Thread-safety: pure functions of the files.
#ifndef LOCKSTEP_LAUNCHER_PACKAGE_PACKAGE_H_
#define LOCKSTEP_LAUNCHER_PACKAGE_PACKAGE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::launcher {

inline constexpr int kMostPackageFiles = 20'000;

struct Package {
  std::string id;  // coordinator::PackageId
  std::string bytes;
  int files = 0;
};

// Packs the files in `folder` that its .lockstepignore does not leave out, but for what is in the
// folder `runs`, where runs are made (empty: none is known). Folders without files are not in it.
// Blocks for the disk, until `stopped` is set. Errors: Cancelled when it was;
// NotFound; FailedPrecondition (what is there is no folder, a file cannot be read, is neither a
// file, a folder nor a link, or is a link that leads out of the folder), naming it;
// ResourceExhausted (too much), naming the largest files.
absl::StatusOr<Package> PackFolder(const std::string& folder, const std::string& runs = "",
                                   const std::atomic<bool>& stopped = false);

// Makes `folder`, which must not be there, with what is in the package. What it says of names is
// not taken on trust: nothing is written outside the folder, and nothing but files and links within
// it is made. The files are on the disk when it returns. Blocks for it. Errors: DataLoss (the bytes
// are not those of `id`, or no package); InvalidArgument (a name or link in it is not allowed),
// naming it; those of writing.
absl::Status UnpackFolder(std::string_view bytes, const std::string& id, const std::string& folder);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_PACKAGE_PACKAGE_H_
