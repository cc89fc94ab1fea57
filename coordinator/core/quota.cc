// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/context.h"
#include "coordinator/core/queue_view.h"

namespace lockstep::coordinator {
namespace {

bool UsesGpus(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(),
                     [](const Slot& slot) { return slot.worker && slot.worker->on_gpu; });
}

}  // namespace

std::string WhyNoMore(const State& state, const Job& job, int more) {
  const std::string& user = job.request.user();
  const QueueRules rules = RulesOf(state.options);
  const Quota& quota = QuotaOf(rules, user);
  if (quota.slots == 0 && quota.gpus == 0) return "";
  int slots = 0, gpus = 0;
  for (const std::string& id : state.begun) {
    const Job& other = state.jobs.at(id);
    if (other.request.user() != user) continue;
    slots += SlotsOf(other);
    if (UsesGpus(other)) gpus += SlotsOf(other);
  }
  const auto exceeds = [&](int most, int used, const char* what) {
    return absl::StrCat("the quota of ", user, " is ", Count(most, what), ", ", used,
                        " of them are in use");
  };
  if (quota.slots > 0 && slots + more > quota.slots) return exceeds(quota.slots, slots, "slot");
  if (UsesGpus(job) && quota.gpus > 0 && gpus + more > quota.gpus) {
    return exceeds(quota.gpus, gpus, "GPU");
  }
  return "";
}

}  // namespace lockstep::coordinator
