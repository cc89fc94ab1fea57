// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/stays.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/core/command.h"
#include "coordinator/core/context.h"
#include "coordinator/core/generation.h"

namespace lockstep::coordinator {
namespace {

// The worker of `stays`, which was to leave, has the part of `instead`, whose worker goes or is yet
// to get a node.
void StayInstead(Slot& stays, Slot& instead) {
  std::swap(stays.wanted, instead.wanted);
  std::swap(stays.lent, instead.lent);  // what the job is to get back it still is
  std::swap(stays.returns, instead.returns);
  if (instead.unplaced()) instead.worker.reset();
}

// When only places that were given up hold the state, one of them stays for a newcomer, or for one
// that waits for a node with room: those who are to leave may be all that there is. A member that
// has yet to copy the state holds none. Returns whether one stays.
bool KeepAHolder(Job& job) {
  if (IsCommand(job)) return false;
  Slot *holder = nullptr, *newcomer = nullptr, *unplaced = nullptr;
  for (Slot& slot : job.slots) {
    if (slot.works() && slot.unplaced()) unplaced = &slot;
    if (slot.vacant() || !Able(job, *slot.worker)) continue;
    const bool holds = slot.worker->ready->committed_step() > 0;
    if (slot.works() && holds) return false;
    if (!slot.wanted && holds && holder == nullptr) holder = &slot;
    if (slot.works() && !holds) newcomer = &slot;
  }
  Slot* const instead = newcomer != nullptr ? newcomer : unplaced;
  if (holder == nullptr || instead == nullptr) return false;
  StayInstead(*holder, *instead);
  return true;
}

// When so many workers were lost that too few are left without those who were to leave, some of
// these stay for ones that wait for a node: it may be the leaving ones who take all the room.
// Returns whether any do.
bool KeepEnough(Job& job) {
  std::vector<Slot*> leaving, unplaced;
  int able = 0;
  for (Slot& slot : job.slots) {
    if (slot.works() && slot.unplaced()) unplaced.push_back(&slot);
    if (slot.vacant() || !Able(job, *slot.worker)) continue;
    if (slot.works()) ++able;
    if (!slot.wanted && slot.worker->serves()) leaving.push_back(&slot);
  }
  // One that came to take over, and does not now, can do as well, if none that has the state does.
  std::stable_partition(leaving.begin(), leaving.end(),
                        [&](const Slot* slot) { return IsMember(job, *slot->worker); });
  const int missing = job.least_workers() - able;
  if (missing <= 0) return false;
  const auto count = static_cast<size_t>(missing);
  if (std::min(leaving.size(), unplaced.size()) < count) return false;  // it would not be enough
  for (size_t i = 0; i < count; ++i) StayInstead(*leaving[i], *unplaced[i]);
  return true;
}

}  // namespace

bool KeepWhoIsNeeded(Job& job) {
  const bool one = KeepAHolder(job);
  return KeepEnough(job) || one;
}

}  // namespace lockstep::coordinator
