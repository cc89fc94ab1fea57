// SPDX-License-Identifier: Apache-2.0
#include "worker/offline/doctor.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/cuda/doctor.h"
#include "engine/engine.h"
#include "worker/json_text.h"

namespace lockstep::worker {
namespace {

using engine::GpuFinding;

const char* Word(GpuFinding::State state) {
  if (state == GpuFinding::State::kGood) return "ok";
  return state == GpuFinding::State::kMissing ? "missing" : "absent";
}

}  // namespace

bool AnswerDoctor(bool json) {
  const std::string cpu = engine::DescribeDevice(1);
  const std::vector<GpuFinding> findings = engine::ExamineGpus();
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
