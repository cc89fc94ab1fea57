// SPDX-License-Identifier: Apache-2.0
// The flags that say where the journal is; of the daemon and of `backup` and `restore`.
// Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_STORE_FLAGS_H_
#define LOCKSTEP_COORDINATOR_STORE_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/store/etcd/options.h"
#include "coordinator/store/sqlite_store.h"

namespace lockstep::coordinator {

struct StoreFlags {
  SqliteOptions state;  // folder empty: nothing is kept
  std::string address;  // of etcd; empty: the journal is in the folder
  std::string ca_file, cert_file, key_file;
  std::string user, password_file;
  bool plaintext = false;  // also to other machines
  absl::Duration lease = absl::Seconds(2);
  std::string advertise;
};

// Returns whether the flag is one of these.
bool IsStoreFlag(absl::string_view name);
// Returns whether such a flag has a value.
bool StoreFlagTakesValue(absl::string_view name);
// Checks the value of a flag that stood as "--name=value": the shell leaves its '~' as it is, which
// is none of a file or folder. Errors: InvalidArgument.
absl::Status CheckAttached(absl::string_view name, absl::string_view value);
// A flag that takes no value has an empty one. Errors: InvalidArgument.
absl::Status SetStoreFlag(absl::string_view name, absl::string_view value, StoreFlags& flags);

// Reads what the flags name. REQUIRES: there is an address. Errors: InvalidArgument,
// FailedPrecondition (what goes to another machine would not be encrypted; others can read the key
// or the password), NotFound and others when a file cannot be read.
absl::StatusOr<EtcdOptions> EtcdOptionsOf(const StoreFlags& flags);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_FLAGS_H_
