// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/stall.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/health.h"

namespace lockstep::coordinator {
namespace {

// Heartbeats come five times a second, or more often: who misses some is not where it said it was.
constexpr absl::Duration kSilent = absl::Milliseconds(700);
constexpr absl::Duration kLeast = absl::Seconds(1);
constexpr int kSteps = 5;
// Ranks that do not come at the same time are told together, up to so many.
constexpr size_t kMostMissing = 4;

// "25.6M", "1.05k", "512".
std::string ShortCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return absl::StrFormat("%.3gG", value / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.3gM", value / 1e6);
  if (count >= 1'000) return absl::StrFormat("%.3gk", value / 1e3);
  return absl::StrCat(count);
}

std::string Ranks(const std::vector<MemberView>& members) {
  return absl::StrCat(members.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(members, ",", [](std::string* out, const MemberView& member) {
                        absl::StrAppend(out, member.rank);
                      }));
}

std::string DoingInStep(Activity activity) {
  switch (activity) {
    case IN_DATA_LOADER:
      return "is in the data loader";
    case COMPUTING:
      return "computes";
    case REDUCING:
      return "reduces";
    case UPDATING:
      return "updates its state";
    case COPYING_CHECKPOINT:
      return "waits for a checkpoint's copy of its state";
    case BETWEEN_STEPS:
      return "is between two steps";
    default:
      return "trains";
  }
}

std::string Doing(const WorkerHeartbeat& heartbeat) {
  switch (heartbeat.progress().phase()) {
    case COMPILING:
      return "compiles";
    case LOADING:
      return "loads";
    case WAITING:
      return "waits for its generation";
    case TRAINING:
      return DoingInStep(heartbeat.activity());
    case EVALUATING:
      return "evaluates";
    case SAVING:
      return "saves";
    case FINISHED:
      return "has finished";
    default:
      return "has not said what it does";
  }
}

std::string MissingText(const MemberView& member) {
  std::string text = absl::StrCat("rank ", member.rank);
  const int64_t completed = member.heartbeat.flight().last_completed();
  absl::StrAppend(&text, completed > 0 ? absl::StrCat(" last completed ", completed)
                                       : " has completed nothing yet");
  if (member.is_silent) {
    absl::StrAppend(&text, ", has said nothing for ", DurationText(member.silent),
                    " (before: ", Doing(member.heartbeat), ")");
  } else {
    absl::StrAppend(&text, ", ", Doing(member.heartbeat));
  }
  return absl::StrCat(text, ", host ", member.host, " pid ", member.pid);
}

// The members as they are now. Empty when one of them is gone, has ended its work or has not come
// to this generation: then others say what happens.
std::vector<MemberView> View(const Context& context, const Job& job) {
  std::vector<MemberView> views;
  for (const Member& member : job.generation.message.members()) {
    const Worker* worker = FindWorker(job, member.incarnation());
    if (worker == nullptr || worker->dead() || worker->failed || worker->finished ||
        worker->last_heard == absl::InfinitePast() ||
        worker->heartbeat.generation() != job.generation.message.generation()) {
      return {};
    }
    const absl::Duration silent = context.now - worker->last_heard;
    views.push_back(
        {worker->slot, worker->host, worker->pid, silent, silent > kSilent, worker->heartbeat});
  }
  return views;
}

absl::Duration Limit(const Job& job) {
  absl::Duration median;
  for (const Slot& slot : job.slots) {
    if (slot.worker) median = std::max(median, MedianStep(*slot.worker));
  }
  return std::max(kLeast, median > absl::ZeroDuration() ? kSteps * median : FailureDetection(job));
}

// The rank that a member waits for now, or -1. One that is silent is not believed.
int Target(const std::vector<MemberView>& members, int rank) {
  const MemberView& member = members[rank];
  const int target = member.heartbeat.waiting_for() - 1;
  if (member.is_silent || target >= static_cast<int>(members.size()) || target == rank) return -1;
  return target;
}

absl::Duration Open(const MemberView& member) {
  return absl::Microseconds(member.heartbeat.flight().open_us());
}

// Whom the member waits for in the end: who itself waits for nobody. -1: they wait in a circle.
int RootOf(const std::vector<MemberView>& members, int rank) {
  for (size_t steps = 0; steps <= members.size(); ++steps) {
    const int target = Target(members, rank);
    if (target < 0) return rank;
    rank = target;
  }
  return -1;
}

struct Finding {
  FlightState flight;
  std::vector<MemberView> waiting;
  std::vector<MemberView> missing;
  absl::Duration longest;
};

// Nobody waits too long: nothing.
std::optional<Finding> Find(const std::vector<MemberView>& members, absl::Duration limit) {
  Finding finding;
  std::vector<int> roots;
  absl::Duration direct;  // the longest wait for somebody that is missing itself
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    const MemberView& member = members[rank];
    // The others are about to be late as well.
    if (Target(members, rank) < 0 || Open(member) < limit / 2) continue;
    finding.waiting.push_back(member);
    finding.longest = std::max(finding.longest, Open(member));
    const int root = RootOf(members, rank);
    if (root >= 0) roots.push_back(root);
    if ((root < 0 || root == Target(members, rank)) && Open(member) > direct) {
      direct = Open(member);
      finding.flight = member.heartbeat.flight();
    }
  }
  if (finding.longest < limit) return std::nullopt;
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  for (const int root : roots) finding.missing.push_back(members[root]);
  return finding;
}

// Returns whether anybody waits for so long that it may be a stall; to look at all of them takes
// longer.
bool MayStall(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.worker && slot.worker->waits &&
           absl::Microseconds(slot.worker->heartbeat.flight().open_us()) >= kLeast;
  });
}

bool AnySilent(const std::vector<MemberView>& members) {
  return std::any_of(members.begin(), members.end(),
                     [](const MemberView& member) { return member.is_silent; });
}

void SayOver(Context& context, const Job& job) {
  const Stall& stall = *job.stall;
  AppendNotice(
      context, job,
      absl::StrCat(stall.operation, " goes on after ", DurationText(context.now - stall.began),
                   stall.missing.empty() ? "" : absl::StrCat(": ", stall.missing, " has come")));
}

}  // namespace

std::string OperationText(const FlightState& flight) {
  std::string text;
  if (flight.operation() == "tree_reduce") {
    absl::StrAppend(&text, "step ", flight.step(), ", bucket ", flight.bucket(), ", ");
  }
  absl::StrAppend(&text, flight.operation());
  if (flight.sequence() > 0) return absl::StrCat(text, " ", flight.sequence());
  return flight.step() > 0 ? absl::StrCat(text, " of step ", flight.step()) : text;
}

std::string StallText(const FlightState& flight, const std::vector<MemberView>& waiting,
                      const std::vector<MemberView>& missing, absl::Duration longest) {
  std::string text = OperationText(flight);
  if (!flight.dtype().empty()) {
    absl::StrAppend(&text, " ", flight.dtype(), "[", ShortCount(flight.count()), "]");
  }
  absl::StrAppend(&text, ": ", Ranks(waiting), waiting.size() == 1 ? " waits " : " wait ",
                  DurationText(longest));
  if (missing.empty()) return absl::StrCat(text, "; they wait for each other");
  for (size_t i = 0; i < std::min(missing.size(), kMostMissing); ++i) {
    absl::StrAppend(&text, "; ", MissingText(missing[i]));
  }
  if (missing.size() > kMostMissing) {
    absl::StrAppend(&text, "; ", missing.size() - kMostMissing, " more");
  }
  return text;
}

void WatchStall(Context& context, Job& job) {
  if (job.final() || job.ending || !HasActiveGeneration(job)) return job.stall.reset();
  if (!job.stall && !MayStall(job)) return;
  const std::vector<MemberView> members = View(context, job);
  if (members.empty()) return job.stall.reset();
  const absl::Duration limit = Limit(job);
  const std::optional<Finding> finding = Find(members, limit);
  const int64_t generation = job.generation.message.generation();
  if (job.stall && job.stall->generation != generation) job.stall.reset();
  if (!finding) {
    // What a silent one does is not known: it may be the stall's next victim or its cause.
    if (job.stall && AnySilent(members)) return;
    if (job.stall && job.stall->said) SayOver(context, job);
    return job.stall.reset();
  }
  if (!job.stall) job.stall = Stall{generation, context.now - finding->longest, false, "", "", ""};
  job.stall->text =
      StallText(finding->flight, finding->waiting, finding->missing, finding->longest);
  if (job.stall->said) return;
  // Who was stopped within a collective is seen to wait in a circle until its silence is noticed.
  if (finding->missing.empty() && finding->longest < 2 * limit) return;
  job.stall->said = true;
  job.stall->operation = OperationText(finding->flight);
  if (!finding->missing.empty()) job.stall->missing = Ranks(finding->missing);
  AppendNotice(context, job, job.stall->text);
}

}  // namespace lockstep::coordinator
