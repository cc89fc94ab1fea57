// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "job/resolve.h"

namespace lockstep::job {
namespace {

// A device that is "auto" may be either, and workers who are given the CPU say this themselves.
void CheckCpu(const JobSpec& spec, const ErrorAt& error) {
  if (spec.resources().device() != "cpu" || !spec.resources().nproc_by().empty()) return;
  const auto wants_gpus = [&](const char* path, const std::string& use) {
    if (use != "always") return;
    error(path, absl::StrCat("'", path, "' always wants GPUs, and 'resources.device' is cpu: set ",
                             "that to cuda, or leave this out"));
  };
  wants_gpus("nccl.use", spec.nccl().use());
  wants_gpus("resources.cudnn", spec.resources().cudnn());
}

}  // namespace

void CheckEngineRules(const JobSpec& spec, const ErrorAt& error) {
  CheckCpu(spec, error);
}

}  // namespace lockstep::job
