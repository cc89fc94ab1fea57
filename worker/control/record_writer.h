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
    const bool gone =
        !writer_.empty() &&
        std::none_of(generation.members().begin(), generation.members().end(),
                     [this](const Member& member) { return member.incarnation() == writer_; });
    writer_ = generation.members(0).incarnation();
    return {rank == 0, gone && rank == first_holder};
  }

 private:
  std::string writer_;  // the incarnation of the last generation's rank 0; empty: there was none
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
