// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/workers.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep::job {

std::vector<int> RanksPerNode(const JobSpec& spec) {
  const Resources& resources = spec.resources();
  if (resources.ranks_per_node_size() > 0) {
    return {resources.ranks_per_node().begin(), resources.ranks_per_node().end()};
  }
  return std::vector<int>(static_cast<size_t>(std::max(1, resources.nodes())),
                          std::max(1, resources.nproc_per_node()));
}

int WantedWorkers(const JobSpec& spec) {
  const Resources& resources = spec.resources();
  if (resources.ranks_per_node_size() == 0) {
    return std::max(1, resources.nodes() * resources.nproc_per_node());
  }
  int64_t sum = 0;
  for (const int32_t ranks : resources.ranks_per_node()) sum += std::max(1, ranks);
  return static_cast<int>(std::min<int64_t>(sum, std::numeric_limits<int32_t>::max()));
}

int LeastWorkers(const JobSpec& spec) {
  const int wanted = WantedWorkers(spec);
  const int least = spec.elastic().min_workers();
  return least > 0 ? std::min(wanted, least) : wanted;
}

int MostWorkers(const JobSpec& spec) {
  return std::max(WantedWorkers(spec), spec.elastic().max_workers());
}

int MostProcesses(const JobSpec& spec) {
  return MostWorkers(spec) + std::max(0, spec.resources().standby());
}

int MostOnAHost(const JobSpec& spec) {
  return spec.has_train() ? kMostTrainersOfHost : std::numeric_limits<int>::max();
}

std::string WhyTooManyOnAHost(int ranks, const JobSpec& spec) {
  if (ranks <= MostOnAHost(spec)) return "";
  return absl::StrCat(ranks, " workers on one host: at most ", MostOnAHost(spec),
                      " of a job that trains share their memory there; use more hosts");
}

std::string TooManyWorkers(int64_t workers, int64_t shards) {
  return absl::StrCat(workers, " workers for ", shards, shards == 1 ? " shard" : " shards",
                      ": a worker needs at least one shard of the batch");
}

namespace {

// Checks whether the job may have so many workers, and of them `most` on one host.
absl::Status CheckCounts(int64_t workers, int most, const JobSpec& spec) {
  if (const std::string why = WhyTooManyOnAHost(most, spec); !why.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", spec.name(), "' cannot be admitted: ", why));
  }
  if (!spec.has_train() || workers <= spec.train().shards()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "job '", spec.name(), "' cannot be admitted: ",
      TooManyWorkers(workers, spec.train().shards()), "; ask for at most ", spec.train().shards(),
      ", or raise train.shards in the job file (which makes it another computation)"));
}

}  // namespace

std::string WhyNotCounted(const JobSpec& spec) {
  const Resources& resources = spec.resources();
  const std::string& by = resources.nproc_by();
  if (by.empty()) return "";
  if (by != "gpu" && by != "cpu" && by != "auto") {
    return absl::StrCat("'resources.nproc_by' is '", by, "': expected gpu, cpu or auto");
  }
  const bool wants_gpus = absl::StartsWith(resources.device(), "cuda");
  if (by == "gpu" && resources.device() == "cpu") {
    return "a worker for each GPU and 'resources.device: cpu' cannot both be meant";
  }
  if (by == "cpu" && wants_gpus) {
    return "a worker for each slot and 'resources.device: cuda' cannot both be meant: write gpu, "
           "or "
           "a number";
  }
  if (by != "cpu" && absl::StartsWith(resources.device(), "cuda:")) {
    return "a worker for each GPU and the first GPU of 'resources.device: cuda:N' cannot both be "
           "meant: write device: cuda";
  }
  return "";
}

bool IsUncounted(const JobSpec& spec) {
  return !spec.resources().nproc_by().empty() && spec.resources().ranks_per_node_size() == 0;
}

absl::Status SetCounted(const std::vector<int>& ranks, const std::string& device, JobSpec* spec) {
  int64_t workers = 0;
  for (const int count : ranks) workers += count;
  const int most = *std::max_element(ranks.begin(), ranks.end());
  if (absl::Status status = CheckCounts(workers, most, *spec); !status.ok()) return status;
  Resources& resources = *spec->mutable_resources();
  resources.set_nodes(static_cast<int>(ranks.size()));
  resources.set_nproc_per_node(most);
  resources.mutable_ranks_per_node()->Assign(ranks.begin(), ranks.end());
  resources.set_device(device);
  return absl::OkStatus();
}

absl::Status OverrideWorkers(int nodes, int nproc_per_node, JobSpec* spec) {
  const int64_t workers = int64_t{nodes} * nproc_per_node;
  if (nodes < 1 || nproc_per_node < 1 || workers > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(nodes, " nodes x ", nproc_per_node, " workers: both must be at least 1"));
  }
  if (absl::Status status = CheckCounts(workers, nproc_per_node, *spec); !status.ok()) {
    return status;
  }
  spec->mutable_resources()->set_nodes(nodes);
  spec->mutable_resources()->set_nproc_per_node(nproc_per_node);
  spec->mutable_resources()->clear_ranks_per_node();
  return absl::OkStatus();
}

}  // namespace lockstep::job
