// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/health_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/available_memory.h"
#include "common/printable.h"
#include "launcher/agent/health_check.h"

namespace lockstep::launcher {
namespace {

constexpr char kNotYet[] = "its checks have not come back yet";
constexpr char kGpusNotYet[] = "its GPUs are being tried";

HealthWatch::Options WithDisk(HealthWatch::Options options) {
  if (!options.examine_disk) {
    options.examine_disk = [](const std::string& folder) {
      return ExamineDisk(folder, /*own=*/true);
    };
  }
  return options;
}

}  // namespace

HealthWatch::HealthWatch(Options options)
    : options_(WithDisk(std::move(options))), problem_(kNotYet) {
  if (options_.examine_gpus) gpu_problem_ = kGpusNotYet;
  thread_ = Thread("agent-health", [this] { Run(); });
}

HealthWatch::~HealthWatch() {
  Stop(absl::ZeroDuration());
  thread_.Join();
}

std::string HealthWatch::Stop(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  stop_ = true;
  changed_.NotifyAll();
  changed_.AwaitFor(&mu_, timeout,
                    [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return looking_at_.empty(); });
  return looking_at_;
}

bool HealthWatch::BeginLook(const std::string& what) {
  absl::MutexLock lock(&mu_);
  if (!stop_) looking_at_ = what;
  return !stop_;
}

void HealthWatch::EndLook() {
  absl::MutexLock lock(&mu_);
  looking_at_.clear();
  changed_.NotifyAll();
}

std::string HealthWatch::problem() const {
  absl::MutexLock lock(&mu_);
  const absl::Duration looking = options_.clock->Now() - looking_since_;
  if (looking > options_.patience) {
    return absl::StrCat("its checks have not come back for ",
                        absl::FormatDuration(absl::Trunc(options_.patience, absl::Seconds(1))),
                        looking_at_.empty() ? "" : absl::StrCat(": ", Printable(looking_at_)),
                        looking_at_.empty() ? "" : " does not answer");
  }
  return PrintableLines(problem_.empty() ? gpu_problem_ : problem_);
}

bool HealthWatch::AwaitFirst(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return changed_.AwaitFor(&mu_, timeout,
                           [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return looked_; });
}

void HealthWatch::Ask(Done done) {
  {
    absl::MutexLock lock(&mu_);
    questions_.push_back(std::move(done));
  }
  changed_.NotifyAll();
}

std::string HealthWatch::LookAtFolders() {
  for (const std::string& folder : options_.folders) {
    if (!BeginLook(absl::StrCat("the folder ", folder))) break;
    std::string problem = options_.examine_disk(folder);
    EndLook();
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string HealthWatch::Look() {
  {
    absl::MutexLock lock(&mu_);
    looking_since_ = options_.clock->Now();
  }
  std::string problem = LookAtFolders();
  if (problem.empty()) problem = ExamineSharedMemory();
  if (problem.empty()) problem = ExamineMemory(AvailableMemory());
  absl::MutexLock lock(&mu_);
  looking_since_ = absl::InfiniteFuture();
  problem_ = problem;
  looked_ = true;
  changed_.NotifyAll();
  return problem.empty() ? gpu_problem_ : problem;
}

void HealthWatch::TryGpus() {
  if (!options_.examine_gpus || !BeginLook("the GPUs")) return;
  std::string problem = options_.examine_gpus();
  EndLook();
  absl::MutexLock lock(&mu_);
  gpu_problem_ = std::move(problem);
}

void HealthWatch::Run() {
  Look();
  TryGpus();
  while (true) {
    std::vector<Done> questions;
    {
      absl::MutexLock lock(&mu_);
      const bool well = problem_.empty() && gpu_problem_.empty();
      const auto due = [this]()
                           ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_ || !questions_.empty(); };
      while (well && !due()) changed_.WaitFor(&mu_, absl::Minutes(1));
      if (!well) changed_.AwaitFor(&mu_, options_.again, due);
      if (stop_) return;
      questions = std::exchange(questions_, {});
    }
    for (const Done& done : questions) done(Look());
    if (!questions.empty()) continue;
    bool gpus_are_bad;
    {
      absl::MutexLock lock(&mu_);
      gpus_are_bad = !gpu_problem_.empty();
    }
    Look();
    if (gpus_are_bad) TryGpus();
  }
}

}  // namespace lockstep::launcher
