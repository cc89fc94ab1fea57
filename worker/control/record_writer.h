// SPDX-License-Identifier: Apache-2.0
// Who writes a run's record: rank 0 of each generation; what one did not write that is gone, or was
// a step behind, the first member with the job's state does.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
#define LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_

#include <algorithm>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace lockstep::worker {

class RecordWriter {
 public:
  struct Part {
    bool writes = false;
    bool remembered = false;  // also what was only remembered (run_record.h)
  };

  // This worker is `rank` of `generation`, in which the ranks `holders`, of which there is one at
  // least, had the state that it goes on from.
  Part InGeneration(const Generation& generation, int rank, const std::vector<int>& holders) {
    const bool gone =
        HasNotWritten(writer_, generation, holders) || IsGone(substitute_, generation);
    writer_ = generation.members(0).incarnation();
    substitute_ = gone ? generation.members(holders.front()).incarnation() : "";
    return {rank == 0, gone && rank == holders.front()};
  }

 private:
  // Returns whether the last generation's rank 0 may not have written its last step: it is gone, or
  // was behind the others, who had committed it.
  static bool HasNotWritten(const std::string& incarnation, const Generation& generation,
                            const std::vector<int>& holders) {
    return IsGone(incarnation, generation) ||
           (!incarnation.empty() && std::none_of(holders.begin(), holders.end(), [&](int holder) {
             return generation.members(holder).incarnation() == incarnation;
           }));
  }
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
