// SPDX-License-Identifier: Apache-2.0
// Who writes a run's record: rank 0 of each generation; what one that is gone did not write, the
// first member with the job's state does.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
#define LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_

#include <algorithm>
#include <string>

#include "proto/coordinator.pb.h"

namespace lockstep::worker {

class RecordWriter {
 public:
  struct Part {
    bool writes = false;
    bool remembered = false;  // also what was only remembered (run_record.h)
  };

  // This worker is `rank` of `generation`, in which `first_holder` is the first to have the state.
  Part InGeneration(const Generation& generation, int rank, int first_holder) {
    const bool gone = IsGone(writer_, generation) || IsGone(substitute_, generation);
    writer_ = generation.members(0).incarnation();
    substitute_ = gone ? generation.members(first_holder).incarnation() : "";
    return {rank == 0, gone && rank == first_holder};
  }

 private:
  static bool IsGone(const std::string& incarnation, const Generation& generation) {
    return !incarnation.empty() &&
           std::none_of(generation.members().begin(), generation.members().end(),
                        [&](const Member& member) { return member.incarnation() == incarnation; });
  }

  // Incarnations of the last generation; empty: there was none.
  std::string writer_;  // its rank 0
  std::string
      substitute_;  // who was to write what one before that had not: it may have died over it
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
