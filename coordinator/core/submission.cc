// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/submission.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/core/context.h"
#include "coordinator/core/state.h"
#include "job/meaning/workers.h"

namespace lockstep::coordinator {
namespace {

// Of what clients say about themselves.
constexpr size_t kLongestName = 63;
constexpr size_t kLongestPath = 4096;

bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= kLongestName && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

bool IsPrintable(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

// A client is not believed: its words become names of folders and lines on terminals.
absl::Status CheckWords(const SubmitJobRequest& request) {
  if (!IsName(request.spec().name())) {
    return absl::InvalidArgumentError(
        absl::StrCat("'name' is made of letters, digits, '-', '_' and '.', begins with none of the "
                     "last, and has ",
                     kLongestName, " characters at most"));
  }
  const std::string& dir = request.submit_dir();
  const bool is_path = dir.empty() || (dir[0] == '/' && dir.size() <= kLongestPath);
  if (!is_path || !IsPrintable(dir) || !IsPrintable(request.user()) ||
      request.user().size() > kLongestPath) {
    return absl::InvalidArgumentError(
        "the submitter's folder is not an absolute path, or its name or the user's has control "
        "characters");
  }
  return absl::OkStatus();
}

// What else the job may have at once, later.
absl::Status CheckMostWorkers(const JobSpec& spec) {
  const std::pair<const char*, int> bounds[] = {
      {"elastic.max_workers", spec.elastic().max_workers()},
      {"resources.standby", spec.resources().standby()},
  };
  for (const auto& [key, value] : bounds) {
    if (value <= kMaxWorkers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key, " is ", value, ": a job has at most ", kMaxWorkers, " workers"));
  }
  return absl::OkStatus();
}

absl::Status CheckSpec(const JobSpec& spec) {
  const int64_t nodes = spec.resources().nodes();
  const int64_t per_node = spec.resources().nproc_per_node();
  if (nodes < 1 || per_node < 1) {
    return absl::InvalidArgumentError(
        "resources.nodes and resources.nproc_per_node must be at least 1");
  }
  const auto& list = spec.resources().ranks_per_node();
  if (std::any_of(list.begin(), list.end(),
                  [](int ranks) { return ranks < 1 || ranks > kMaxWorkers; }) ||
      (!list.empty() && list.size() != nodes)) {
    return absl::InvalidArgumentError(
        "resources.ranks_per_node needs a number of at least 1 for each of resources.nodes");
  }
  if (const std::string why = job::WhyNotCounted(spec); !why.empty()) {
    return absl::InvalidArgumentError(why);
  }
  // The product of larger ones may be no number that WantedWorkers can return.
  const int64_t workers = std::max(nodes, per_node) > kMaxWorkers ? std::max(nodes, per_node)
                                                                  : job::WantedWorkers(spec);
  if (workers > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("a job has at most ", kMaxWorkers,
                                                   " workers; asked for ", nodes, " x ", per_node));
  }
  const std::vector<int> ranks = job::RanksPerNode(spec);
  const int most = *std::max_element(ranks.begin(), ranks.end());
  const std::string why = job::WhyTooManyOnAHost(most, spec);
  if (!why.empty() && !job::IsUncounted(spec)) return absl::InvalidArgumentError(why);
  LS_RETURN_IF_ERROR(CheckMostWorkers(spec));
  if (spec.has_run()) {
    if (spec.run().command_size() > 0) return absl::OkStatus();
    return absl::InvalidArgumentError("the job's 'run' has no command");
  }
  if (!spec.has_train()) {
    return absl::InvalidArgumentError(
        "the job has neither a 'train' section nor a command ('run')");
  }
  const int shards = spec.train().shards();
  if (shards != 0 && workers > shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has ", Count(shards, "shard"), " and cannot use ", workers,
                     " workers; ask for at most ", shards, " or set train.shards"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSubmission(const SubmitJobRequest& request) {
  LS_RETURN_IF_ERROR(CheckWords(request));
  return CheckSpec(request.spec());
}

}  // namespace lockstep::coordinator
