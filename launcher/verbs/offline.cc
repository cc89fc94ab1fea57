// SPDX-License-Identifier: Apache-2.0
// The verbs that need the engine or the data plane for one answer. The launcher does not link
// these; it runs the worker program as a child that prints the answer.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/limits.h"
#include "common/memory_file.h"
#include "common/printable.h"
#include "common/status.h"
#include "job/job_file.h"
#include "job/meaning/workers.h"
#include "launcher/agent/host.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/hosts_plan.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/run_verb.h"
#include "proto/offline.pb.h"

namespace lockstep::launcher {
namespace {

// Runs the worker on `request`, in `folder` when it is not empty; it has our stdout and stderr.
absl::StatusOr<int> Ask(const OfflineRequest& request, const std::string& folder) {
  LS_RETURN_IF_ERROR(CheckProgramLimits(ProgramLimits()));
  LS_ASSIGN_OR_RETURN(const std::string program, FindProgram("worker", "LOCKSTEP_WORKER"));
  LS_ASSIGN_OR_RETURN(const UniqueFd file,
                      MemoryFile("lockstep-request", request.SerializeAsString()));
  ::fcntl(file.get(), F_SETFD, 0);  // the child inherits it
  if (!folder.empty() && ::chdir(folder.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot enter the job's workdir ", folder));
  }
  std::string flag = absl::StrCat("--offline-fd=", file.get());
  std::string asker = absl::StrCat("--asker=", ::getpid());
  std::string name = program;
  char* const argv[] = {name.data(), flag.data(), asker.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv, environ);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", program));
  // Ctrl-C goes to the child too, as a member of the foreground group; its end is then ours. Of
  // what ends us alone it learns by our end.
  ::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "cannot wait for the worker program");
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  if (signal == SIGINT) return kExitInterrupted;
  // Whoever read the answers has left, which is their right.
  if (signal == SIGPIPE) return kExitSignalBase + signal;
  std::cerr << "error: the worker program was ended by signal " << signal << "\n";
  return kExitSignalBase + signal;
}

int Finish(const OfflineRequest& request, const std::string& folder) {
  const absl::StatusOr<int> code = Ask(request, folder);
  return code.ok() ? *code : Complain(code.status());
}

// Returns whether the job's work is known to the engine, and says so where it is not.
bool IsTrained(const JobSpec& spec) {
  if (spec.has_train()) return true;
  std::cerr << "error: the job's work is a command, of which nothing is known before it runs; this "
               "verb looks into 'train'\n";
  return false;
}

// The spec of a job file, which is not run: how many workers this host would have is not asked.
// Returns 0, or the exit code after its errors were shown.
int LoadJob(const JobArgs& args, JobSpec* spec) {
  absl::StatusOr<job::LoadResult> loaded = LoadGoodJob(args, Counted::kByCoordinator);
  if (!loaded.ok()) return Complain(loaded.status(), Input::kJobFile);
  *spec = std::move(loaded->spec);
  return IsTrained(*spec) ? kExitOk : kExitBadJobFile;
}

// The job with the workers that this host would have. Where what is counted is not here, a plan for
// another GPU is made without their number, which it says.
absl::StatusOr<job::LoadResult> LoadPlanned(PlanArgs args) {
  absl::StatusOr<job::LoadResult> job = LoadJobOfRun(args);
  if (args.gpu.empty()) return job;
  if (job.ok()) {
    if (!job->ok() || job->admission.ok()) return job;
    args.job.text = std::move(job->source);  // the standard input is read once
  }
  return LoadJobOfRun(args, Counted::kByCoordinator);
}

}  // namespace

int RunVerb(const PlanArgs& args) {
  absl::StatusOr<job::LoadResult> job = LoadPlanned(args);
  if (!job.ok()) return Complain(job.status(), Input::kJobFile);
  if (!job->ok()) {
    std::cerr << job->FormatErrors();
    return kExitBadJobFile;
  }
  if (!job->admission.ok()) return Complain(job->admission, Input::kJobFile);
  if (!IsTrained(job->spec)) return kExitBadJobFile;
  for (const std::string& warning : job->warnings) std::cerr << "warning: " << warning << "\n";
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  PlanRequest* plan = request.mutable_plan();
  *plan->mutable_spec() = std::move(job->spec);
  plan->set_dump(args.dump);
  plan->set_gpu(args.gpu);
  if (!args.gpu.empty()) plan->mutable_spec()->mutable_resources()->set_device("cuda");
  return Finish(request, plan->spec().workdir());
}

int RunVerb(const EvalArgs& args) {
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  EvalRequest* eval = request.mutable_eval();
  eval->set_model(args.model);
  eval->set_threads(args.threads);
  eval->set_device(args.device);
  if (!args.data.job_file.empty()) {
    if (const int code = LoadJob(args.data, eval->mutable_data()); code != kExitOk) return code;
  }
  return Finish(request, "");
}

int RunVerb(const PredictArgs& args) {
  std::error_code not_there;
  if (!args.inputs.empty() && std::filesystem::equivalent(args.inputs, args.out, not_there)) {
    std::cerr << "error: '" << Printable(args.out) << "' of --out would write over --inputs\n";
    return kExitUsage;
  }
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  PredictRequest* predict = request.mutable_predict();
  predict->set_model(args.model);
  predict->set_threads(args.threads);
  predict->set_device(args.device);
  predict->set_inputs(args.inputs);
  predict->set_out(args.out);
  predict->set_probabilities(args.probabilities);
  if (!args.data.job_file.empty()) {
    if (const int code = LoadJob(args.data, predict->mutable_data()); code != kExitOk) return code;
  }
  return Finish(request, "");
}

int RunVerb(const GenerateArgs& args) {
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  GenerateRequest* generate = request.mutable_generate();
  generate->set_model(args.model);
  generate->set_threads(args.threads);
  generate->set_device(args.device);
  generate->set_prompt(args.prompt);
  generate->set_tokens(args.tokens);
  generate->set_temperature(args.temperature);
  generate->set_top_k(args.top_k);
  generate->set_seed(args.seed);
  generate->set_quiet(args.common.quiet);
  return Finish(request, "");
}

int RunVerb(const BenchArgs& args) {
  if (absl::Status room = CheckMemory(JobSpec(), args.ranks); !room.ok()) return Complain(room);
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  BenchCollectivesRequest* bench = request.mutable_bench_collectives();
  bench->set_ranks(args.ranks);
  bench->set_shards(args.shards);
  bench->set_min_bytes(args.min_bytes);
  bench->set_max_bytes(args.max_bytes);
  bench->set_factor(args.factor);
  for (const std::string& operation : args.operations) bench->add_operations(operation);
  bench->set_seconds(args.seconds);
  return Finish(request, "");
}

int RunVerb(const CompareArgs& args) {
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  CompareRequest* compare = request.mutable_compare();
  if (const int code = LoadJob(args.job, compare->mutable_spec()); code != kExitOk) return code;
  compare->set_a(args.a);
  compare->set_b(args.b);
  if (args.tolerance.has_value()) compare->set_tolerance(*args.tolerance);
  compare->set_step(args.step);
  compare->set_shard(args.shard);
  return Finish(request, compare->spec().workdir());
}

int RunVerb(const DoctorArgs& args) {
  OfflineRequest request;
  request.set_json(args.common.output == Output::kJson);
  request.mutable_doctor();
  return Finish(request, "");
}

}  // namespace lockstep::launcher
