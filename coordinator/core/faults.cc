// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/faults.h"

#include <algorithm>
#include <utility>

namespace lockstep::coordinator {
namespace {

bool IsOpen(const Job& job, int place) {
  return std::any_of(job.open_faults.begin(), job.open_faults.end(),
                     [place](const OpenFault& open) { return open.place == place; });
}

void Drop(Job& job, int place) {
  job.faults.erase(job.faults.begin() + place - 1);
  for (OpenFault& open : job.open_faults) {
    if (open.place > place) --open.place;
  }
}

}  // namespace

int AddFault(Job& job, Fault fault) {
  const auto before = static_cast<int64_t>(job.faults.size());
  // Those of an earlier version have none.
  const int64_t last = job.faults.empty() ? 0 : job.faults.back().number();
  fault.set_number(std::max(last, before) + 1);
  int place = static_cast<int>(kFirstFaults) + 1;
  while (job.faults.size() >= kMostFaults && place <= static_cast<int>(job.faults.size())) {
    if (IsOpen(job, place)) {
      ++place;
    } else {
      Drop(job, place);
    }
  }
  job.faults.push_back(std::move(fault));
  return static_cast<int>(job.faults.size());
}

}  // namespace lockstep::coordinator
