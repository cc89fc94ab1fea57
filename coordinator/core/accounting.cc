// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/accounting.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/run_time.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
// What jobs have is charged so often while they have it, so the journal says when they were last
// seen.
constexpr absl::Duration kChargeEvery = absl::Hours(1);
// A coordinator is not away for longer while jobs run: a clock was wrong.
constexpr absl::Duration kLongestAway = absl::Hours(24);
// A journal in which nothing happened for so long may be one whose clock is wrong now.
constexpr absl::Duration kLongestSilence = absl::Hours(30 * 24);

int64_t DayOf(absl::Time time) { return absl::Floor(time - absl::UnixEpoch(), kDay) / kDay; }
absl::Time BeginOf(int64_t day) { return absl::UnixEpoch() + day * kDay; }

// Returns what is left of a use after `age`.
double Decay(const Options& options, absl::Duration age) {
  const absl::Duration half = options.fair_share_half_life;
  if (half <= absl::ZeroDuration()) return 0;
  return std::exp2(-absl::FDivDuration(std::max(age, absl::ZeroDuration()), half));
}

// Returns what one slot that was had for `span` counts for at its end, in seconds: the integral of
// what is left of each moment of it.
double DecayedSeconds(const Options& options, absl::Duration span) {
  const absl::Duration half = options.fair_share_half_life;
  if (half <= absl::ZeroDuration()) return 0;
  return absl::ToDoubleSeconds(half) / std::numbers::ln2 * (1 - Decay(options, span));
}

// The user's use counts for so much at `at`, which may be before other use that is known.
void AddRecent(Context& context, const std::string& user, double slot_seconds, absl::Time at) {
  const Options& options = context.state.options;
  RecentUse& use = context.state.recent_use[user];
  use.at = std::min(use.at, context.now);  // the clock was ahead
  if (use.at < at) {
    if (use.at != absl::InfinitePast()) use.slot_seconds *= Decay(options, at - use.at);
    use.at = at;
  }
  use.slot_seconds += slot_seconds * Decay(options, use.at - at);
}

// The user had these from `begin` to `end`.
void Charge(Context& context, const std::string& user, const Meter& meter, absl::Time begin,
            absl::Time end) {
  while (begin < end) {
    const DayOfUser day{DayOf(begin), user};
    const absl::Time until = std::min(end, BeginOf(day.first + 1));
    const double seconds = absl::ToDoubleSeconds(until - begin);
    DayUse& use = context.state.usage[day];
    use.slot_seconds += seconds * meter.slots;
    use.gpu_seconds += seconds * meter.gpus;
    context.state.unsettled.usage.insert(day);
    AddRecent(context, user, meter.slots * DecayedSeconds(context.state.options, until - begin),
              until);
    begin = until;
  }
}

// The slots and GPUs that its places have, whatever becomes of the processes there.
Meter Occupied(const Job& job) {
  Meter now;
  if (job.final() || job.state == PENDING) return now;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.unplaced()) continue;
    ++now.slots;
    now.gpus += slot.worker->on_gpu;
  }
  return now;
}

// Returns the meter as it is at `now` if nothing changes until then.
Meter UseOf(Meter meter, absl::Time now) {
  if (meter.since == absl::InfinitePast()) return meter;
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - meter.since));
  meter.slot_seconds += seconds * meter.slots;
  meter.gpu_seconds += seconds * meter.gpus;
  meter.since = now;
  return meter;
}

}  // namespace

Meter UseOf(const Job& job, absl::Time now) { return UseOf(job.meter, now); }

void CountUse(Context& context, Job& job) {
  job.meter.since = std::min(job.meter.since, context.now);  // the clock was ahead
  const Meter held = Occupied(job);
  const bool same = held.slots == job.meter.slots && held.gpus == job.meter.gpus;
  const bool due =
      job.meter.slots > 0 && (!job.meter.regular || context.now >= job.meter.since + kChargeEvery);
  if (same && !due) return;
  if (job.meter.slots > 0) {
    Charge(context, job.request.user(), job.meter, job.meter.since, context.now);
  }
  job.meter = UseOf(job, context.now);
  job.meter.since = context.now;
  job.meter.slots = held.slots;
  job.meter.gpus = held.gpus;
  job.meter.regular = true;
}

void SkipUnseen(Job& job, absl::Time now) {
  Meter& meter = job.meter;
  if (!job.has_begun() || meter.slots == 0) return;
  meter.since = std::min(meter.since, now);
  const absl::Duration unseen = now - meter.since;
  if (!meter.regular || unseen <= kLongestAway) return;
  meter.since = now;
  SkipTime(job, unseen, now);
}

void NoteLeap(State& state, absl::Duration leap) {
  if (leap > kLongestSilence) state.leap = leap;
}

void SkipLeap(State& state, absl::Duration leap, absl::Time now) {
  if (leap <= kLongestAway) return;
  NoteLeap(state, leap);
  for (const std::string& id : state.begun) SkipUnseen(state.jobs.at(id), now);
}

void CountEnd(Context& context, const Job& job) {
  const DayOfUser day{DayOf(context.now), job.request.user()};
  ++context.state.usage[day].ended_jobs;
  context.state.unsettled.usage.insert(day);
}

std::map<std::string, double> RecentUses(const State& state, absl::Time now) {
  std::map<std::string, double> uses;
  if (state.options.fair_share_half_life <= absl::ZeroDuration()) return uses;
  for (const auto& [user, use] : state.recent_use) {
    uses[user] = use.slot_seconds * Decay(state.options, now - use.at);
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.meter.slots == 0) continue;
    uses[job.request.user()] +=
        job.meter.slots * DecayedSeconds(state.options, now - job.meter.since);
  }
  return uses;
}

void ForgetOldUse(Context& context) {
  State& state = context.state;
  if (state.leap > absl::ZeroDuration()) return;
  const int64_t first = DayOf(context.now - state.options.keep_usage);
  while (!state.usage.empty() && state.usage.begin()->first.first < first) {
    EraseRow(context, UsageKey(state.usage.begin()->first));
    state.unsettled.usage.erase(state.usage.begin()->first);
    state.owed_usage.erase(state.usage.begin()->first);
    state.usage.erase(state.usage.begin());
  }
}

absl::Time NewestTime(const State& state, absl::Time now) {
  absl::Time newest = absl::InfinitePast();
  for (const auto& [day, use] : state.usage) {
    newest = std::max(newest, BeginOf(day.first + 1));
  }
  for (const auto& [id, job] : state.jobs) {
    newest = std::max({newest, job.submitted, job.started, job.ended, job.meter.since});
  }
  return std::min(newest, now);
}

std::string UsageKey(const DayOfUser& day) {
  return absl::StrCat("usage/", day.first, "/", day.second);
}

std::string UsageRow(const State& state, const DayOfUser& day) {
  const DayUse& use = state.usage.at(day);
  UsageRecord record;
  record.set_day(day.first);
  record.set_user(day.second);
  record.set_slot_seconds(use.slot_seconds);
  record.set_gpu_seconds(use.gpu_seconds);
  record.set_ended_jobs(use.ended_jobs);
  return Bytes(record);
}

bool RestoreUsage(const std::string& row, absl::Time now, State& state) {
  UsageRecord record;
  if (!record.ParseFromString(row)) return false;
  state.usage[{record.day(), record.user()}] = {record.slot_seconds(), record.gpu_seconds(),
                                                record.ended_jobs()};
  // When it was, of a day by a clock that was wrong, is not known.
  if (record.day() > DayOf(now) + 1) return true;
  // As if it had all been used at noon.
  RecentUse& use = state.recent_use[record.user()];
  const absl::Time noon = std::min(now, BeginOf(record.day()) + kDay / 2);
  use.slot_seconds += record.slot_seconds() * Decay(state.options, now - noon);
  use.at = now;
  return true;
}

GetUsageResponse GetUsage(const State& state, const GetUsageRequest& request, absl::Time now) {
  const int64_t first =
      request.has_since() ? DayOf(FromProto(request.since())) : std::numeric_limits<int64_t>::min();
  std::map<std::string, UserUsage> users;
  for (const auto& [day, use] : state.usage) {
    if (day.first < first) continue;
    UserUsage& user = users[day.second];
    user.set_slot_seconds(user.slot_seconds() + use.slot_seconds);
    user.set_gpu_seconds(user.gpu_seconds() + use.gpu_seconds);
    user.set_ended_jobs(user.ended_jobs() + use.ended_jobs);
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    UserUsage& user = users[job.request.user()];
    if (job.state == PENDING) {
      user.set_waiting_jobs(user.waiting_jobs() + 1);
      continue;
    }
    // What it used before is in `usage`.
    Meter meter = job.meter;
    meter.slot_seconds = meter.gpu_seconds = 0;
    if (meter.since != absl::InfinitePast() && request.has_since()) {
      meter.since = std::max(meter.since, BeginOf(first));
    }
    meter = UseOf(meter, now);
    user.set_slot_seconds(user.slot_seconds() + meter.slot_seconds);
    user.set_gpu_seconds(user.gpu_seconds() + meter.gpu_seconds);
    user.set_running_jobs(user.running_jobs() + 1);
    user.set_slots(user.slots() + meter.slots);
    user.set_gpus(user.gpus() + meter.gpus);
  }
  const std::map<std::string, double> recent = RecentUses(state, now);
  QueueRules rules;
  rules.quotas = state.options.quotas;
  rules.quota = state.options.quota;
  GetUsageResponse response;
  for (auto& [name, usage] : users) {
    if (!request.user().empty() && request.user() != name) continue;
    const Quota& quota = QuotaOf(rules, name);
    usage.set_user(name);
    const auto use = recent.find(name);
    usage.set_recent_use(use == recent.end() ? 0 : use->second);
    usage.set_most_slots(quota.slots);
    usage.set_most_gpus(quota.gpus);
    usage.set_most_jobs(quota.jobs);
    *response.add_users() = usage;
  }
  return response;
}

}  // namespace lockstep::coordinator
