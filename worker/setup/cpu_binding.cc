// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/cpu_binding.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace lockstep::worker {

CpuChoice ChooseCpus(const WorkerAssignment& assignment, const CpuList& allowed) {
  const Device& device = assignment.device();
  const Resources& resources = assignment.spec().resources();
  if (device.kind() != "cuda" || resources.bind_cpus() == "never") return {};
  const absl::StatusOr<CpuList> near = ParseCpuList(device.cpus());
  if (!near.ok()) return {{}, absl::StrCat("not bound to CPUs: ", near.status().message())};
  if (near->empty()) return {};
  CpuList cpus;
  std::set_intersection(near->begin(), near->end(), allowed.begin(), allowed.end(),
                        std::back_inserter(cpus));
  if (cpus.empty()) {
    return {{},
            absl::StrCat("not bound to the CPUs near its GPU (", CpuListText(*near),
                         "): it may run on ", CpuListText(allowed), " only")};
  }
  if (cpus == allowed) return {};
  const int threads = std::max(1, resources.cpus_per_proc());
  if (static_cast<int>(cpus.size()) < threads) {
    return {{},
            absl::StrCat("not bound to the CPUs near its GPU: it may use ", CpuListText(cpus),
                         " of them, and has ", threads, " threads (resources.cpus_per_proc)")};
  }
  const std::string text = CpuListText(cpus);
  return {std::move(cpus), absl::StrCat("runs on CPUs ", text, ", which are near its GPU")};
}

void StayNearDevice(const WorkerAssignment& assignment) {
  const absl::StatusOr<CpuList> allowed = CpusOfThread();
  if (!allowed.ok()) return;
  const CpuChoice choice = ChooseCpus(assignment, *allowed);
  if (!choice.cpus.empty()) {
    if (const absl::Status kept = KeepThreadOn(choice.cpus); !kept.ok()) {
      LS_LOG_WARNING << kept.message();
      return;
    }
  }
  if (choice.says.empty()) return;
  LS_LOG_INFO << choice.says;
}

}  // namespace lockstep::worker
