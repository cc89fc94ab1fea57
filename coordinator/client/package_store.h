// SPDX-License-Identifier: Apache-2.0
// Packages (proto/package.proto) by their names: the coordinator's, and what an agent keeps of
// them. They lie in a folder, or in memory; when they are too many, those that were used the
// longest ago go. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_PACKAGE_STORE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_PACKAGE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace lockstep::coordinator {

// A package's files have no more bytes than this, and their names are in it, too.
inline constexpr int64_t kMostPackageBytes = 64 << 20;
inline constexpr int64_t kMostPackedBytes = kMostPackageBytes + (4 << 20);

// The name of a package with these bytes: 64 hexadecimal digits.
std::string PackageId(std::string_view bytes);
// Returns what a job's workdir is when it is a package, and the name in it; empty: it is a path.
std::string PackageWorkdir(const std::string& id);
std::string PackageOf(absl::string_view workdir);

class PackageStore {
 public:
  struct Settings {
    std::string folder = {};       // empty: in memory
    int64_t most_bytes = 1 << 30;  // of all
    // Those that stay whatever their age. May be empty.
    std::function<std::set<std::string>()> in_use = {};
  };
  explicit PackageStore(Settings settings) : settings_(std::move(settings)) {}

  // Returns whether it is there; it counts as used now.
  bool Has(const std::string& id);
  // Keeps it, durably where it is a folder. Blocks for the disk. Errors: InvalidArgument (the bytes
  // are not those of `id`, or too many); ResourceExhausted (the others are all in use, or the disk
  // is full); those of writing.
  absl::Status Put(const std::string& id, const std::string& bytes);
  // Errors: NotFound; DataLoss (its file is damaged, and is removed).
  absl::StatusOr<std::string> Get(const std::string& id);

 private:
  std::string PathOf(const std::string& id) const;
  // Lets old ones go until `bytes` more have room.
  absl::Status MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Settings settings_;
  absl::Mutex mu_;
  struct Kept {
    std::string bytes;
    int64_t used = 0;
  };
  std::map<std::string, Kept> kept_ ABSL_GUARDED_BY(mu_);  // without a folder
  int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_PACKAGE_STORE_H_
