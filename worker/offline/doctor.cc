// SPDX-License-Identifier: Apache-2.0
#include "worker/offline/doctor.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/nccl/nccl_library.h"
#include "engine/cuda/doctor.h"
#include "engine/engine.h"
#include "worker/json_text.h"
#include "worker/offline/host_gpus.h"

namespace lockstep::worker {
namespace {

using engine::GpuFinding;

const char* Word(GpuFinding::State state) {
  if (state == GpuFinding::State::kGood) return "ok";
  return state == GpuFinding::State::kMissing ? "missing" : "absent";
}

// What the engine does not know: NCCL, and what the kernel says.
void AddHost(std::vector<GpuFinding>* findings) {
  using State = GpuFinding::State;
  const absl::StatusOr<const NcclLibrary*> nccl = LoadNccl();
  if (nccl.ok()) {
    findings->push_back(
        {State::kGood, "NCCL",
         absl::StrCat((*nccl)->name(), " (", (*nccl)->features(), "), ", (*nccl)->path)});
  } else {
    findings->push_back(
        {State::kOptional, "NCCL",
         absl::StrCat(nccl.status().message(), "; without it gradients go through the host")});
  }
  const std::vector<GpuPlace> places = GpuPlaces("/sys");
  for (const GpuPlace& place : places) {
    findings->push_back(
        {State::kGood, "place",
         absl::StrCat(place.pci, place.numa < 0 ? "" : absl::StrCat(", NUMA node ", place.numa),
                      ", near CPUs ", place.cpus)});
  }
  if (places.empty()) return;
  const DirectAccess access = FindDirectAccess("/sys", "/proc");
  const auto state = [](bool good) { return good ? State::kGood : State::kOptional; };
  findings->push_back({state(access.rdma), "RDMA", access.rdma_text});
  findings->push_back({state(access.storage), "storage", access.storage_text});
}

}  // namespace

bool AnswerDoctor(bool json) {
  const std::string cpu = engine::DescribeDevice(1);
  std::vector<GpuFinding> findings = engine::ExamineGpus();
  AddHost(&findings);
  bool usable = true;
  std::string parts;
  if (!json) std::printf("%-12s %-8s %s\n", "CPU", "ok", cpu.c_str());
  for (const GpuFinding& finding : findings) {
    usable = usable && finding.state != GpuFinding::State::kMissing;
    if (json) {
      absl::StrAppend(&parts, parts.empty() ? "" : ",", "{\"part\":", JsonString(finding.part),
                      ",\"state\":", JsonString(Word(finding.state)),
                      ",\"text\":", JsonString(finding.text), "}");
    } else {
      std::printf("%-12s %-8s %s\n", finding.part.c_str(), Word(finding.state),
                  finding.text.c_str());
    }
  }
  if (json) {
    std::printf("{\"schema\":1,\"cpu\":%s,\"cuda\":%s,\"parts\":[%s]}\n", JsonString(cpu).c_str(),
                usable ? "true" : "false", parts.c_str());
  } else {
    std::printf("%s\n", usable ? "device: cuda can be used here"
                               : "device: cuda cannot be used here; device: auto takes the CPU");
  }
  return usable;
}

}  // namespace lockstep::worker
