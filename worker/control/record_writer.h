// SPDX-License-Identifier: Apache-2.0
// Who writes a run's record: rank 0 of each generation. What one that is gone may not have written,
// or one that was a step behind, the survivor that has been there longest writes, who remembers it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
#define LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
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
  // least, had the state that it goes on from. To be called once that is known, also when the
  // generation ends before all have the state: in the next one nobody is behind any more.
  Part InGeneration(const Generation& generation, int rank, const std::vector<int>& holders) {
    std::map<std::string, int64_t> since;
    for (const Member& member : generation.members()) {
      const auto known = since_.find(member.incarnation());
      since.emplace(member.incarnation(), known == since_.end() ? seen_ : known->second);
    }
    ++seen_;
    since_ = std::move(since);
    const size_t gone = std::erase_if(
        wrote_, [this](const std::string& incarnation) { return !since_.contains(incarnation); });
    const bool missing = gone > 0 || IsBehind(writer_, generation, holders);
    const auto incarnation = [&generation](int member) -> const std::string& {
      return generation.members(member).incarnation();
    };
    const auto longest_of = [&](const std::vector<int>& ranks) {
      return *std::ranges::min_element(ranks, {}, [&](int member) {
        return std::tuple(since_.at(incarnation(member)), member);
      });
    };
    std::vector<int> all(static_cast<size_t>(generation.members_size()));
    std::iota(all.begin(), all.end(), 0);
    // Of the last step only those who have the state know; those steps before that no one of them
    // was there for, somebody may who did not come to its end.
    const int longest = longest_of(holders), longest_of_all = longest_of(all);
    writer_ = incarnation(0);
    wrote_.insert(writer_);
    if (missing) wrote_.insert({incarnation(longest), incarnation(longest_of_all)});
    return {rank == 0, missing && (rank == longest || rank == longest_of_all)};
  }

 private:
  // Returns whether the last generation's rank 0 is there and has not committed its last step,
  // which others have.
  static bool IsBehind(const std::string& incarnation, const Generation& generation,
                       const std::vector<int>& holders) {
    return !incarnation.empty() && std::ranges::none_of(holders, [&](int holder) {
      return generation.members(holder).incarnation() == incarnation;
    });
  }

  // Incarnations. Of the members of the last generation: in which one they were first seen here.
  std::map<std::string, int64_t> since_;
  int64_t seen_ = 0;    // generations
  std::string writer_;  // the last generation's rank 0; empty: there was none
  // Those still there that were to write once: they may die before they have.
  std::set<std::string> wrote_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RECORD_WRITER_H_
