// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "job/meaning/workers.h"
#include "job/resolve.h"

namespace lockstep::job {
namespace {

// Sizes that come from a preset are not known here; the engine's presets fit.
void CheckHeads(const std::string& model, int64_t heads, int64_t width, const ErrorAt& error) {
  if (heads < 1 || width < 1 || width % heads == 0) return;
  const std::string path = absl::StrCat("train.model.", model, ".heads");
  error(path, absl::StrCat("'", path, "' ", heads, " does not divide 'width' ", width));
}

void CheckModel(const Model& model, const ErrorAt& error) {
  CheckHeads("gpt", model.gpt().heads(), model.gpt().width(), error);
  CheckHeads("bert", model.bert().heads(), model.bert().width(), error);
  const int64_t kernel = model.cnn().kernel();
  if (model.has_cnn() && kernel > 0 && kernel % 2 == 0) {
    error("train.model.cnn.kernel", absl::StrCat("'train.model.cnn.kernel' ", kernel, " is even; ",
                                                 kernel - 1, " or ", kernel + 1, " would do"));
  }
  if (model.has_layers() && model.layers().sequence().empty()) {
    error("train.model.layers",
          "'train.model.layers' needs a layer at least: sequence: [linear: {}]");
  }
}

// A device that is "auto" may be either, and workers who are given the CPU say this themselves; so
// do those who were counted, whose device is what the count found.
void CheckCpu(const JobSpec& spec, const ErrorAt& error) {
  const Resources& resources = spec.resources();
  const bool counted = !resources.nproc_by().empty() && !IsUncounted(spec);
  const bool by_cpu = resources.nproc_by() == "cpu";
  if (!by_cpu && (resources.device() != "cpu" || counted)) return;
  const auto wants_gpus = [&](const char* path, const std::string& use) {
    if (use != "always") return;
    error(path, absl::StrCat("'", path, "' always wants GPUs, and ",
                             by_cpu ? "'resources.nproc_per_node' counts CPUs: count gpu"
                                    : "'resources.device' is cpu: set that to cuda",
                             ", or leave this out"));
  };
  wants_gpus("nccl.use", spec.nccl().use());
  wants_gpus("resources.cudnn", spec.resources().cudnn());
}

}  // namespace

void CheckEngineRules(const JobSpec& spec, const ErrorAt& error) {
  CheckModel(spec.train().model(), error);
  CheckCpu(spec, error);
}

}  // namespace lockstep::job
