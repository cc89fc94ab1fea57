// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/submission.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/available_cpus.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/status.h"
#include "common/utf8.h"
#include "job/job_file.h"
#include "job/meaning/workers.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/host.h"

namespace lockstep::launcher {
namespace {

// Returns what a word stands for on this host.
absl::StatusOr<int> CountHere(const std::string& by) {
  if (by == "cpu") return AvailableCpus();
  if (const size_t gpus = UsableGpus().size(); gpus > 0) return static_cast<int>(gpus);
  if (by == "auto") return AvailableCpus();
  return absl::FailedPreconditionError(
      "--nproc-per-node=gpu: this build can use no GPU here ('launcher doctor' says why); give a "
      "number, or cpu");
}

std::string WordOf(ProcCount::Kind kind) {
  switch (kind) {
    case ProcCount::Kind::kAuto:
      return "auto";
    case ProcCount::Kind::kCpu:
      return "cpu";
    case ProcCount::Kind::kGpu:
      return "gpu";
    case ProcCount::Kind::kCount:
      break;
  }
  return "";
}

// With the file's own word, which no flag took back, on this host.
absl::Status CountFile(JobSpec* spec) {
  LS_ASSIGN_OR_RETURN(const int count, CountHere(spec->resources().nproc_by()));
  spec->mutable_resources()->clear_nproc_by();
  return job::OverrideWorkers(spec->resources().nodes(), std::min(count, job::MostOnAHost(*spec)),
                              spec);
}

// A command as a job file.
std::string FileOf(const std::vector<std::string>& command) {
  return absl::StrCat("run: ", JsonArrayOf(command), "\n");
}

// Returns what the job is called after: the script, also where the command names its interpreter.
std::string NameOf(const JobArgs& args) {
  if (!args.script.empty()) return args.script;
  for (const std::string& word : args.command) {
    if (absl::EndsWith(word, ".py")) return word;
  }
  return args.command.front();
}

absl::Status FillSecrets(JobSpec* spec) {
  for (auto& [name, value] : *spec->mutable_secrets()) {
    // A run's job.yaml does not show what it was.
    const bool hidden = value == job::kHiddenSecret;
    if (!value.empty() && !hidden) continue;
    const char* found = std::getenv(name.c_str());
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the job wants the secret ", name, hidden ? ", which its file shows as ***," : "",
          " and the environment has no variable of that name"));
    }
    if (ToUtf8(found) != found) {
      return absl::InvalidArgumentError(
          absl::StrCat("the secret ", name, ", from the environment, is not UTF-8"));
    }
    value = found;
  }
  return absl::OkStatus();
}

constexpr char kArrayIndex[] = "LOCKSTEP_ARRAY_INDEX";

// The payload of a status whose message is that of a job file's diagnostics.
constexpr char kDiagnostics[] = "lockstep/diagnostics";

// The text of a job and what messages call it.
struct JobText {
  std::string text, name;
};

// The job as an element of an array has it.
job::LoadResult LoadAs(const JobArgs& args, const job::WorkerFlags& flags, const JobText& job,
                       int index, const std::vector<std::string>& more) {
  const std::string variable = absl::StrCat("${", kArrayIndex, "}");
  const std::string number = absl::StrCat(index);
  std::vector<std::string> sets = args.sets;
  sets.insert(sets.end(), more.begin(), more.end());
  for (std::string& set : sets) set = absl::StrReplaceAll(set, {{variable, number}});
  return job::ParseJob(absl::StrReplaceAll(job.text, {{variable, number}}), job.name, sets, flags);
}

// Elements have names, and so folders, of their own: the job's with the number behind, unless it
// has the number in it.
job::LoadResult LoadElement(const JobArgs& args, const job::WorkerFlags& flags,
                            const JobText& job) {
  const int index = *args.array_index;
  job::LoadResult one = LoadAs(args, flags, job, index, {});
  const job::LoadResult other = LoadAs(args, flags, job, index + 1, {});
  if (!one.ok() || one.spec.name() != other.spec.name()) return one;
  const std::string number = absl::StrCat("-", index);
  const size_t room = job::kMostNameLength - number.size();
  if (one.named && one.spec.name().size() > room) {
    job::Diagnostic diagnostic;
    diagnostic.file = job.name;
    diagnostic.message =
        absl::StrCat("'name' is '", one.spec.name(), "', of ", one.spec.name().size(),
                     " characters: this element of the array is called that with '", number,
                     "' behind it, and a name has ", job::kMostNameLength, " at most");
    one.errors.push_back(std::move(diagnostic));
    return one;
  }
  return LoadAs(args, flags, job, index,
                {absl::StrCat("name=", one.spec.name().substr(0, room), number)});
}

job::LoadResult LoadFile(const JobArgs& args, const std::vector<std::string>& sets,
                         const job::WorkerFlags& flags) {
  if (!args.text.has_value()) return job::LoadJobFile(args.job_file, sets, flags);
  return job::ParseJob(*args.text, job::NameInMessages(args.job_file), sets, flags);
}

job::LoadResult LoadText(const JobArgs& args, const job::WorkerFlags& flags) {
  if (!args.command.empty()) {
    const JobText job{FileOf(args.command), NameOf(args)};
    return args.array_index.has_value() ? LoadElement(args, flags, job)
                                        : job::ParseJob(job.text, job.name, args.sets, flags);
  }
  if (!args.array_index.has_value()) return LoadFile(args, args.sets, flags);
  job::LoadResult file = LoadFile(args, {}, {});
  if (file.source.empty()) return file;
  return LoadElement(args, flags,
                     JobText{std::move(file.source), job::NameInMessages(args.job_file)});
}

absl::Status CheckFault(const chaos::Injection& fault, const JobSpec& spec) {
  const int least = job::LeastWorkers(spec), most = job::MostWorkers(spec);
  if (fault.action == chaos::Action::kScale && (fault.workers < least || fault.workers > most)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", chaos::ToString(fault), "': the job may have ", least, " to ", most,
                     " workers (elastic.min_workers, elastic.max_workers)"));
  }
  const int processes = job::MostProcesses(spec);
  if (fault.rank < processes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("'", chaos::ToString(fault), "': the job has ", processes, " workers at most"));
}

}  // namespace

absl::StatusOr<std::vector<chaos::Injection>> FaultsOf(const JobArgs& args, const JobSpec& spec) {
  std::vector<chaos::Injection> faults = args.faults;
  if (args.random_faults == 0) return faults;
  constexpr int64_t kWithin = 100;
  int64_t within = args.chaos_steps > 0 ? args.chaos_steps : spec.train().steps();
  if (within < 2) within = kWithin;
  if (const int64_t most = chaos::MostDrawn(within); args.random_faults > most) {
    const bool the_jobs = args.chaos_steps == 0 && spec.train().steps() == within;
    return absl::InvalidArgumentError(
        absl::StrCat("--random ", args.random_faults, ": ", within, " steps have room for at most ",
                     most, " faults, which are two steps apart; draw fewer, or ",
                     the_jobs ? "train more steps" : "give it more steps with --within"));
  }
  chaos::Drawing drawing;
  drawing.steps = within;
  drawing.least_workers = job::LeastWorkers(spec);
  drawing.most_workers = job::MostWorkers(spec);
  drawing.ranks = drawing.most_workers;
  drawing.halves = spec.train().zero_stage() > 0 && drawing.most_workers > 2;
  for (const chaos::Injection& drawn : chaos::Draw(args.chaos_seed, args.random_faults, drawing)) {
    faults.push_back(drawn);
  }
  return faults;
}

std::string UserName() {
  if (const passwd* entry = ::getpwuid(::getuid())) return entry->pw_name;
  return absl::StrCat(::getuid());
}

JobArgs WithText(JobArgs args) {
  if (!args.command.empty() || args.text.has_value()) return args;
  if (auto text = job::ReadJobFile(args.job_file); text.ok()) args.text = *std::move(text);
  return args;
}

absl::StatusOr<job::LoadResult> LoadJob(const JobArgs& args, Counted counted) {
  job::WorkerFlags flags;
  flags.nodes = args.nodes;
  flags.replaced = args.workers_of_hosts;
  std::string by;
  if (args.nproc_per_node.has_value()) {
    by = WordOf(args.nproc_per_node->kind);
    flags.replaced = flags.replaced || !by.empty();
    if (by.empty()) {
      flags.nproc_per_node = args.nproc_per_node->count;
    } else if (counted == Counted::kHere) {
      LS_ASSIGN_OR_RETURN(flags.nproc_per_node, CountHere(by));
    }
  }
  job::LoadResult loaded = LoadText(args, flags);
  if (!loaded.ok() || !loaded.admission.ok()) return loaded;
  Resources& resources = *loaded.spec.mutable_resources();
  if (counted == Counted::kByCoordinator && !by.empty()) {
    resources.clear_ranks_per_node();
    resources.set_nproc_by(by);
    const std::string why = job::WhyNotCounted(loaded.spec);
    if (!why.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("--nproc-per-node=", by, ": ", why));
    }
  } else if (counted == Counted::kHere && !resources.nproc_by().empty()) {
    loaded.admission = CountFile(&loaded.spec);
  }
  // All of them is what a job without bounds waits for, also where their GPUs are yet to be
  // counted.
  if (args.least_nodes.has_value() && args.least_nodes != args.nodes) {
    loaded.spec.mutable_elastic()->set_min_workers(
        *args.least_nodes * std::max(1, loaded.spec.resources().nproc_per_node()));
  }
  return loaded;
}

bool IsDiagnostics(const absl::Status& status) {
  return status.GetPayload(kDiagnostics).has_value();
}

absl::StatusOr<job::LoadResult> LoadGoodJob(const JobArgs& args, Counted counted) {
  LS_ASSIGN_OR_RETURN(job::LoadResult loaded, LoadJob(args, counted));
  if (!loaded.ok()) {
    absl::Status diagnostics = absl::InvalidArgumentError(loaded.FormatErrors());
    diagnostics.SetPayload(kDiagnostics, absl::Cord());
    return diagnostics;
  }
  LS_RETURN_IF_ERROR(loaded.admission);
  return loaded;
}

absl::StatusOr<SubmitJobRequest> MakeSubmission(const JobArgs& args, Counted counted) {
  SubmitJobRequest request;
  LS_ASSIGN_OR_RETURN(job::LoadResult loaded, LoadGoodJob(args, counted));
  JobSpec& spec = loaded.spec;
  LS_RETURN_IF_ERROR(FillSecrets(&spec));
  LS_ASSIGN_OR_RETURN(const std::vector<chaos::Injection> faults, FaultsOf(args, spec));
  for (const chaos::Injection& fault : faults) {
    LS_RETURN_IF_ERROR(CheckFault(fault, spec));
  }
  if (args.array_index.has_value()) {
    (*spec.mutable_env())[kArrayIndex] = absl::StrCat(*args.array_index);
    request.mutable_array()->set_index(*args.array_index);
  }
  if (!faults.empty()) (*spec.mutable_env())[chaos::kVariable] = chaos::ToString(faults);
  *request.mutable_spec() = std::move(spec);
  request.set_source(loaded.source);
  char folder[PATH_MAX] = {};
  if (::getcwd(folder, sizeof(folder)) == nullptr) {
    return ErrnoStatus(errno, "cannot find out the current folder");
  }
  if (ToUtf8(folder) != folder) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the current folder ", Printable(folder), " is not UTF-8: start from one whose path is"));
  }
  request.set_submit_dir(folder);
  request.set_user(UserName());
  request.set_request_id(RandomId());
  return request;
}

}  // namespace lockstep::launcher
