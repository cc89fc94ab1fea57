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

void CheckPool(const PoolLayer& pool, const std::string& path, const ErrorAt& error) {
  if (2 * pool.padding() <= pool.kernel()) return;
  error(path + ".padding", absl::StrCat("'", path, ".padding' ", pool.padding(),
                                        " is more than half of 'kernel' ", pool.kernel()));
}

// What the images and the layers before decide is left to the workers. `ends`: the last of the
// layers gives the classes.
void CheckLayers(const google::protobuf::RepeatedPtrField<Layer>& layers, const std::string& list,
                 bool ends, const ErrorAt& error) {
  for (int i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    const std::string path = absl::StrCat(list, "[", i, "]");
    if (layer.has_linear() && layer.linear().features() == 0 && !(ends && i + 1 == layers.size())) {
      error(path + ".linear.features",
            absl::StrCat("'", path,
                         ".linear' needs 'features': only the last layer may leave them "
                         "out, which gives the classes"));
    }
    if (layer.has_conv() && layer.conv().groups() > 1 &&
        layer.conv().channels() % layer.conv().groups() != 0) {
      error(path + ".conv.groups",
            absl::StrCat("'", path, ".conv.groups' ", layer.conv().groups(),
                         " does not divide 'channels' ", layer.conv().channels()));
    }
    if (layer.has_max_pool()) CheckPool(layer.max_pool(), path + ".max_pool", error);
    if (layer.has_avg_pool()) CheckPool(layer.avg_pool(), path + ".avg_pool", error);
    if (layer.has_residual()) {
      CheckLayers(layer.residual().body(), path + ".residual.body", false, error);
      CheckLayers(layer.residual().shortcut(), path + ".residual.shortcut", false, error);
    }
  }
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
  CheckLayers(model.layers().sequence(), "train.model.layers.sequence", true, error);
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
