// SPDX-License-Identifier: Apache-2.0
// How many workers a job asks for, on which hosts, and between which bounds.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "job/meaning/workers.h"
#include "job/resolve.h"
#include "job/rules_of_a_part.h"

namespace lockstep::job {
namespace {

class WorkerRules : public RulesOfAPart {
 public:
  WorkerRules(const JobSpec& spec, const Written& written, const WorkerFlags& flags,
              Reporter* reporter)
      : RulesOfAPart(spec, written, reporter), flags_(flags.any()), replaced_(flags.replaced) {}
  void Check();

 private:
  // Returns whether the numbers of workers are not the file's.
  bool OthersCount() const { return flags_ || replaced_ || IsUncounted(spec_); }
  void CheckRanksPerNode();
  void CheckBounds(int64_t workers);

  const bool flags_;
  const bool replaced_;
};

void WorkerRules::CheckRanksPerNode() {
  const Resources& resources = spec_.resources();
  const auto& list = resources.ranks_per_node();
  if (!resources.nproc_by().empty()) {
    const std::string why = WhyNotCounted(spec_);
    if (!why.empty()) Error({"resources.nproc_by"}, why);
    if (IsWritten("resources.nproc_by") && !IsWritten("train.shards") && spec_.has_train()) {
      Error({"resources.nproc_by"},
            absl::StrCat(
                "'train.shards' has to be there with 'nproc_per_node: ", resources.nproc_by(),
                "': how many workers there will be is not known yet, and the result "
                "depends on the shards"));
    }
    if (IsWritten("resources.nproc_by") && !list.empty()) {
      Error({"resources.ranks_per_node"},
            absl::StrCat("'resources.ranks_per_node' and 'nproc_per_node: ", resources.nproc_by(),
                         "' both say how many workers each host has"));
    }
  }
  const std::vector<int> ranks = RanksPerNode(spec_);
  const std::string why = WhyTooManyOnAHost(*std::max_element(ranks.begin(), ranks.end()), spec_);
  if (!why.empty() && !OthersCount()) {
    Error({"resources.ranks_per_node", "resources.nproc_per_node"}, why);
  }
  if (list.empty()) return;
  if (resources.nodes() != list.size()) {
    Error({"resources.nodes"},
          absl::StrCat("'resources.nodes' is ", resources.nodes(),
                       " and 'resources.ranks_per_node' has ", list.size(),
                       list.size() == 1 ? " host" : " hosts", "; leave 'nodes' out"));
  }
  const int32_t most = *std::max_element(list.begin(), list.end());
  if (resources.nproc_per_node() != most) {
    Error({"resources.nproc_per_node"},
          absl::StrCat("'resources.nproc_per_node' is ", resources.nproc_per_node(),
                       " and the most in 'resources.ranks_per_node' is ", most,
                       "; leave 'nproc_per_node' out"));
  }
}

// Flags and hosts move the bounds (job/meaning/workers.h); without them the file is to agree with
// itself.
void WorkerRules::CheckBounds(int64_t workers) {
  if (OthersCount()) return;
  const Elastic& elastic = spec_.elastic();
  const auto error = [&](const char* key, int64_t bound, const char* advice) {
    const std::string bounded = absl::StrCat("elastic.", key);
    Error({bounded},
          absl::StrCat("'", bounded, "' is ", bound, " and 'resources' asks for ", workers,
                       workers == 1 ? " worker (" : " workers (",
                       spec_.resources().ranks_per_node().empty() ? "nodes x nproc_per_node"
                                                                  : "ranks_per_node",
                       "), ", advice));
  };
  if (elastic.min_workers() > workers) {
    error("min_workers", elastic.min_workers(),
          "with which the job begins where there is room: ask for more there, or lower this");
  } else if (elastic.max_workers() > 0 && elastic.max_workers() < workers) {
    error("max_workers", elastic.max_workers(),
          "which is more: ask for fewer there, or raise this");
  }
}

void WorkerRules::Check() {
  const Elastic& elastic = spec_.elastic();
  if (elastic.min_workers() < 0 || elastic.max_workers() < 0) return;
  CheckRanksPerNode();
  const int64_t workers = WantedWorkers(spec_);
  if (elastic.max_workers() > 0 && elastic.min_workers() > elastic.max_workers()) {
    Error({"elastic.min_workers"},
          absl::StrCat("'elastic.min_workers' ", elastic.min_workers(),
                       " is more than 'elastic.max_workers' ", elastic.max_workers()));
    return;
  }
  if (!spec_.has_train() || spec_.train().shards() < 1) return CheckBounds(workers);
  const int32_t shards = spec_.train().shards();
  // Too many by flags are told apart (LoadResult::admission): the file has nothing to point at.
  if (workers > shards) {
    if (flags_) return;
    Error({"train.shards"}, TooManyWorkers(workers, shards) +
                                "; lower 'resources.nproc_per_node' or raise 'train.shards'");
    return;
  }
  // A lower bound may be written alone; one that flags have gone below gives way.
  const bool upper = elastic.max_workers() > 0;
  const int32_t most = upper ? elastic.max_workers() : flags_ ? 0 : elastic.min_workers();
  if (most <= shards) return CheckBounds(workers);
  const std::string bound = upper ? "elastic.max_workers" : "elastic.min_workers";
  Error({bound}, absl::StrCat("'", bound, "' ", most, ": ", TooManyWorkers(most, shards),
                              "; lower '", bound, "' or raise 'train.shards'"));
}

}  // namespace

void CheckWorkerRules(const JobSpec& spec, const Written& written, const WorkerFlags& flags,
                      Reporter* reporter) {
  WorkerRules(spec, written, flags, reporter).Check();
}

}  // namespace lockstep::job
