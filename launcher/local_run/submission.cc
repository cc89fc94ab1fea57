// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/submission.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "job/job_file.h"
#include "job/workers.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/host.h"

namespace lockstep::launcher {
namespace {

std::string UserName() {
  if (const passwd* entry = ::getpwuid(::getuid())) return entry->pw_name;
  return absl::StrCat(::getuid());
}

absl::StatusOr<int> CountOf(const ProcCount& procs) {
  switch (procs.kind) {
    case ProcCount::Kind::kCount:
      return procs.count;
    case ProcCount::Kind::kAuto:
    case ProcCount::Kind::kCpu:
      return AvailableCpus();
    case ProcCount::Kind::kGpu:
      break;
  }
  if (const size_t gpus = UsableGpus().size(); gpus > 0) return static_cast<int>(gpus);
  return absl::FailedPreconditionError(
      "--nproc-per-node=gpu: this build can use no GPU here ('launcher doctor' says why); give a "
      "number, or cpu");
}

absl::Status FillSecrets(JobSpec* spec) {
  for (auto& [name, value] : *spec->mutable_secrets()) {
    if (!value.empty()) continue;
    const char* found = std::getenv(name.c_str());
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the job wants the secret ", name, " and the environment has no variable of that name"));
    }
    value = found;
  }
  return absl::OkStatus();
}

}  // namespace

int MostWorkers(const JobSpec& spec) {
  return std::max(spec.resources().nodes() * spec.resources().nproc_per_node(),
                  spec.elastic().max_workers()) +
         spec.resources().standby();
}

namespace {

// Fewest and most workers that the job may be scaled to.
std::pair<int, int> WorkerRange(const JobSpec& spec) {
  const int wanted = spec.resources().nodes() * spec.resources().nproc_per_node();
  const int least = spec.elastic().min_workers() > 0 ? spec.elastic().min_workers() : wanted;
  return {least, std::max(wanted, spec.elastic().max_workers())};
}

absl::Status CheckFault(const chaos::Injection& fault, const JobSpec& spec) {
  const auto [least, most] = WorkerRange(spec);
  if (fault.action == chaos::Action::kScale && (fault.workers < least || fault.workers > most)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", chaos::ToString(fault), "': the job may have ", least, " to ", most,
                     " workers (elastic.min_workers, elastic.max_workers)"));
  }
  if (fault.rank < MostWorkers(spec)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("'", chaos::ToString(fault), "': the job has ",
                                                    MostWorkers(spec), " workers at most"));
}

}  // namespace

std::vector<chaos::Injection> FaultsOf(const JobArgs& args, const JobSpec& spec) {
  std::vector<chaos::Injection> faults = args.faults;
  if (args.random_faults == 0) return faults;
  constexpr int64_t kWithin = 100;
  int64_t within = args.chaos_steps > 0 ? args.chaos_steps : spec.train().steps();
  if (within < 2) within = kWithin;
  chaos::Drawing drawing;
  drawing.steps = within;
  std::tie(drawing.least_workers, drawing.most_workers) = WorkerRange(spec);
  drawing.ranks = drawing.most_workers;
  drawing.halves = spec.train().zero_stage() > 0 && drawing.most_workers > 2;
  for (const chaos::Injection& drawn : chaos::Draw(args.chaos_seed, args.random_faults, drawing)) {
    faults.push_back(drawn);
  }
  return faults;
}

absl::StatusOr<SubmitJobRequest> MakeSubmission(const JobArgs& args) {
  SubmitJobRequest request;
  if (!args.command.empty()) {
    return absl::UnimplementedError(
        "this version trains jobs with 'train:'; it does not run commands yet");
  }
  job::LoadResult loaded = job::LoadJobFile(args.job_file, args.sets);
  if (!loaded.ok()) return absl::InvalidArgumentError(loaded.FormatErrors());
  JobSpec& spec = loaded.spec;
  if (spec.has_run()) {
    return absl::UnimplementedError(
        "this version trains jobs with 'train:'; it does not run commands yet");
  }
  if (args.nodes.has_value() || args.nproc_per_node.has_value()) {
    int procs = spec.resources().nproc_per_node();
    if (args.nproc_per_node.has_value()) {
      LS_ASSIGN_OR_RETURN(procs, CountOf(*args.nproc_per_node));
    }
    LS_RETURN_IF_ERROR(
        job::OverrideWorkers(args.nodes.value_or(spec.resources().nodes()), procs, &spec));
  }
  LS_RETURN_IF_ERROR(FillSecrets(&spec));
  const std::vector<chaos::Injection> faults = FaultsOf(args, spec);
  for (const chaos::Injection& fault : faults) {
    LS_RETURN_IF_ERROR(CheckFault(fault, spec));
  }
  if (!faults.empty()) (*spec.mutable_env())[chaos::kVariable] = chaos::ToString(faults);
  *request.mutable_spec() = std::move(spec);
  request.set_source(loaded.source);
  char folder[PATH_MAX] = {};
  if (::getcwd(folder, sizeof(folder)) == nullptr) {
    return ErrnoStatus(errno, "cannot find out the current folder");
  }
  request.set_submit_dir(folder);
  request.set_user(UserName());
  request.set_request_id(RandomId());
  return request;
}

}  // namespace lockstep::launcher
