// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "collectives/nccl/nccl_library.h"
#include "common/json.h"
#include "common/nvml.h"
#include "engine/cuda/doctor.h"
#include "engine/cuda/module.h"
#include "engine/engine.h"
#include "engine/exec/kernel_choice.h"
#include "worker/commands/gpu_health.h"
#include "worker/commands/host_gpus.h"
#include "worker/commands/reduction_check.h"
#include "worker/setup/data_plane.h"

namespace lockstep::worker {
namespace {

using engine::GpuFinding;

const char* Word(GpuFinding::State state) {
  switch (state) {
    case GpuFinding::State::kGood:
      return "ok";
    case GpuFinding::State::kMissing:
      return "missing";
    case GpuFinding::State::kOptional:
      return "absent";
    case GpuFinding::State::kDoubtful:
      return "doubtful";
  }
  return "";
}

using State = GpuFinding::State;
using Findings = std::vector<GpuFinding>;

constexpr size_t kMostRanks = 8;

// The GPUs that a reduction by NCCL is tried on; none where there is nothing to try.
std::vector<std::string> GpusToJoin(const Nvml* nvml) {
  std::vector<std::string> uuids;
  if (const char* given = std::getenv("LOCKSTEP_GPUS")) {
    uuids = absl::StrSplit(given, ',', absl::SkipEmpty());
  } else if (nvml != nullptr) {
    const absl::StatusOr<std::vector<Nvml::Device>> devices = nvml->Devices();
    if (!devices.ok()) return {};
    for (const auto& device : VisibleDevices(*devices, std::getenv("CUDA_VISIBLE_DEVICES"))) {
      uuids.push_back(device.uuid);
    }
  }
  const auto is_instance = [](const std::string& uuid) { return absl::StartsWith(uuid, "MIG-"); };
  uuids.erase(std::remove_if(uuids.begin(), uuids.end(), is_instance), uuids.end());
  if (uuids.size() > kMostRanks) uuids.resize(kMostRanks);
  return uuids;
}

void AddReductions(const Nvml* nvml, const NcclLibrary* nccl, Findings* findings) {
  const absl::StatusOr<std::string> host = CheckHostReduction();
  findings->push_back({host.ok() ? State::kGood : State::kMissing, "reduction",
                       absl::StrCat("in the host's memory: ",
                                    host.ok() ? *host : std::string(host.status().message()))});
  std::vector<std::string> uuids = GpusToJoin(nvml);
  JobSpec job;
  job.mutable_resources()->set_device("cuda");
  if (nccl == nullptr || uuids.empty() || ExpectedPlace(job) != GradientPlace::kGpu) return;
  if (uuids.size() == 1) {
    if (nccl->version < kNcclSharesGpus) {
      findings->push_back({State::kOptional, "reduction",
                           "by NCCL: nothing to try with one GPU (two ranks may share it from NCCL "
                           "2.30 on)"});
      return;
    }
    uuids.push_back(uuids[0]);
  }
  const absl::StatusOr<std::string> between = CheckNcclReduction(uuids);
  findings->push_back({between.ok() ? State::kGood : State::kDoubtful, "reduction",
                       between.ok()
                           ? absl::StrCat("by NCCL: ", *between)
                           : absl::StrCat("by NCCL: ", between.status().message(),
                                          "; nccl: {use: never} takes the host's memory instead")});
}

// Returns what the engine does not know: NCCL, and what the kernel and the driver say. Nothing has
// used a GPU in this process yet.
Findings ExamineHost() {
  Findings findings;
  const absl::StatusOr<const NcclLibrary*> nccl = LoadNccl();
  if (nccl.ok()) {
    findings.push_back(
        {State::kGood, "NCCL",
         absl::StrCat((*nccl)->name(), " (", (*nccl)->features(), "), ", (*nccl)->path)});
  } else {
    findings.push_back(
        {State::kOptional, "NCCL",
         absl::StrCat(nccl.status().message(), "; without it gradients go through the host")});
  }
  const absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  const Nvml* const driver = nvml.ok() ? nvml->get() : nullptr;
  AddReductions(driver, nccl.ok() ? *nccl : nullptr, &findings);
  if (driver == nullptr) return findings;
  const Findings told = ExamineByDriver(*driver, "/sys", "/proc");
  findings.insert(findings.end(), told.begin(), told.end());
  const DirectAccess access = FindDirectAccess("/sys", "/proc");
  const auto state = [](bool good) { return good ? State::kGood : State::kOptional; };
  findings.push_back({state(access.rdma), "RDMA", access.rdma_text});
  findings.push_back({state(access.storage), "storage", access.storage_text});
  return findings;
}

// Which kernels the CPU's work is done with, and what was measured: {"why": ..., "chosen": [...]}.
std::string ToJson(const engine::KernelChoices& choices) {
  JsonArray chosen;
  for (size_t i = 0; i < choices.of.size(); ++i) {
    JsonObject times;
    for (const engine::KernelTime& time : choices.of[i].times) {
      times.Add(engine::Name(time.isa), time.microseconds);
    }
    chosen.Raw(JsonObject()
                   .Add("work", engine::Name(static_cast<engine::OpClass>(i)))
                   .Add("set", engine::Name(choices.of[i].isa))
                   .Raw("microseconds", times.Done())
                   .Done());
  }
  return JsonObject().Add("why", choices.why).Raw("chosen", chosen.Done()).Done();
}

void Print(const engine::KernelChoices& choices) {
  std::printf("%-12s %-8s chosen: %s\n", "kernels", "ok", choices.why.c_str());
  for (size_t i = 0; i < choices.of.size(); ++i) {
    std::string text = engine::Name(choices.of[i].isa);
    const char* between = " (";
    for (const engine::KernelTime& time : choices.of[i].times) {
      absl::StrAppendFormat(&text, "%s%s %.0f us", between, engine::Name(time.isa),
                            time.microseconds);
      between = ", ";
    }
    if (!choices.of[i].times.empty()) text += ")";
    std::printf("%-12s %-8s %s: %s\n", "kernels", "ok",
                engine::Name(static_cast<engine::OpClass>(i)), text.c_str());
  }
}

// Returns whether an agent gives its workers GPUs here: it goes by the module's file and by what
// the driver says, and loads nothing.
bool AgentsDealGpus() {
  if (::access(engine::cuda::ModulePaths().front().c_str(), R_OK) != 0) return false;
  if (const char* given = std::getenv("LOCKSTEP_GPUS")) return *given != '\0';
  const absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  if (!nvml.ok() || !WhyTooOld(**nvml).empty()) return false;
  const absl::StatusOr<std::vector<Nvml::Device>> devices = (*nvml)->Devices();
  return devices.ok() && !VisibleDevices(*devices, std::getenv("CUDA_VISIBLE_DEVICES")).empty();
}

const char* Conclusion(bool usable) {
  if (usable) return "device: cuda can be used here";
  return AgentsDealGpus()
             ? "device: cuda cannot be used here, and jobs of device: auto are given GPUs "
               "all the same: see to what is missing, or use device: cpu"
             : "device: cuda cannot be used here; device: auto takes the CPU";
}

}  // namespace

bool AnswerDoctor(bool json) {
  const Findings host = ExamineHost();
  const std::string cpu = engine::DescribeDevice(engine::Name(engine::DetectIsa()), 1);
  const absl::StatusOr<engine::KernelChoices> kernels = engine::ChooseKernels("");
  Findings findings = engine::ExamineGpus();
  findings.insert(findings.end(), host.begin(), host.end());
  bool usable = true;
  JsonArray parts;
  if (!json) {
    std::printf("%-12s %-8s %s\n", "CPU", kernels.ok() ? "ok" : "missing", cpu.c_str());
    if (kernels.ok()) {
      Print(*kernels);
    } else {
      std::printf("%-12s %-8s %s\n", "kernels", "missing", kernels.status().ToString().c_str());
    }
  }
  for (const GpuFinding& finding : findings) {
    usable = usable && finding.state != GpuFinding::State::kMissing;
    if (json) {
      parts.Raw(JsonObject()
                    .Add("part", finding.part)
                    .Add("state", Word(finding.state))
                    .Add("text", finding.text)
                    .Done());
    } else {
      std::printf("%-12s %-8s %s\n", finding.part.c_str(), Word(finding.state),
                  finding.text.c_str());
    }
  }
  if (json) {
    JsonObject answer;
    answer.Add("schema", 1).Add("cpu", cpu);
    if (kernels.ok()) answer.Raw("kernels", ToJson(*kernels));
    answer.Add("cuda", usable).Raw("parts", parts.Done());
    std::printf("%s\n", answer.Done().c_str());
  } else {
    std::printf("%s\n", Conclusion(usable));
  }
  return usable;
}

}  // namespace lockstep::worker
