// SPDX-License-Identifier: Apache-2.0
// The coordinator's store: a batch is on the disk when its write has come back, and a crash before
// leaves all of it or nothing, as does a write that fails. It stalls, is full, and fails for good.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_DISK_H_
#define LOCKSTEP_TESTS_MACHINES_DISK_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/core.h"
#include "coordinator/outbox/outbox.h"
#include "coordinator/outbox/request_rows.h"

namespace lockstep::simulation {

struct Disk {
  std::string cluster = "cluster";  // whose journal it is
  std::map<std::string, std::string> rows;
  std::map<int64_t, std::vector<coordinator::Row>> under_way;  // by who writes it
  int64_t lives = 0;
  int64_t owner = 0;  // who has it, of these: an earlier one that lives on has lost it
  // Faults.
  absl::Time stalled_until = absl::InfinitePast();
  bool full = false;
  bool broken = false;  // until the next start

  // A new coordinator takes it; one that had it before cannot write any more.
  int64_t Take() { return owner = ++lives; }
  bool Owns(int64_t writer) const { return writer == owner; }
  void Begin(int64_t writer, std::vector<coordinator::Row> batch) {
    under_way[writer] = std::move(batch);
  }
  bool IsWriting(int64_t writer) const {
    const auto batch = under_way.find(writer);
    return batch != under_way.end() && !batch->second.empty();
  }
  // The write under way is through. Of one that the disk fails it is not known whether it is there:
  // `lands` says so.
  absl::Status Finish(int64_t writer, bool lands = false) {
    const std::vector<coordinator::Row> batch = std::exchange(under_way[writer], {});
    if (!Owns(writer)) return absl::UnavailableError("the journal is another coordinator's");
    if (broken) {
      if (lands) Apply(batch);
      return absl::UnavailableError("disk I/O error");
    }
    if (full) return absl::ResourceExhaustedError("no space left on device");
    Apply(batch);
    return absl::OkStatus();
  }
  // The owner died or is replaced: what was being written is there or not.
  void Crash(bool written) {
    const std::vector<coordinator::Row> batch = std::exchange(under_way[owner], {});
    if (written && !full && !broken) Apply(batch);
    broken = false;
  }

 private:
  void Apply(const std::vector<coordinator::Row>& batch) {
    for (const coordinator::Row& row : batch) {
      if (row.erased) {
        rows.erase(row.key);
      } else {
        rows[row.key] = row.value;
      }
    }
  }
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_DISK_H_
