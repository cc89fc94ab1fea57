// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/straggler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::coordinator {
namespace {

constexpr int64_t kReductions = 100;
constexpr absl::Duration kShortest = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Seconds(10);
// Fewer tell nothing.
constexpr int64_t kFewest = 10;
constexpr double kSlower = 1.2;
constexpr absl::Duration kSayEvery = absl::Minutes(1);

absl::Duration Median(std::vector<absl::Duration> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// The median of `value` over all but `rank`.
template <typename Value>
absl::Duration MedianOfOthers(const std::vector<StepShare>& shares, size_t rank, Value value) {
  std::vector<absl::Duration> times;
  for (size_t r = 0; r < shares.size(); ++r) {
    if (r != rank) times.push_back(value(shares[r]));
  }
  return Median(std::move(times));
}

absl::Duration WorkOf(const StepShare& share) {
  return (share.step - share.wait) / std::max(1, share.shards);
}

// How far the members have come, by rank. Empty when one of them is not in this generation.
std::vector<StragglerMark> Marks(const Job& job) {
  std::vector<StragglerMark> marks;
  const Generation& generation = job.generation.message;
  for (const Member& member : generation.members()) {
    const Worker* worker = FindWorker(job, member.incarnation());
    if (worker == nullptr || worker->heartbeat.generation() != generation.generation()) return {};
    const WorkerHeartbeat& heartbeat = worker->heartbeat;
    marks.push_back({heartbeat.arrivals().reductions(), heartbeat.arrivals().last(),
                     heartbeat.arrivals().waited_us(), heartbeat.progress().step(),
                     heartbeat.progress().train_seconds()});
  }
  return marks;
}

std::vector<StepShare> SharesOf(const Job& job, const std::vector<StragglerMark>& now) {
  std::vector<StepShare> shares;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    const StragglerMark& first = job.straggler.first[rank];
    const Member& member = job.generation.message.members(static_cast<int>(rank));
    StepShare share;
    share.shards = member.shard_end() - member.shard_begin();
    share.reductions = now[rank].reductions - first.reductions;
    share.last = now[rank].last - first.last;
    const int64_t steps = now[rank].step - first.step;
    const double seconds = now[rank].train_seconds - first.train_seconds;
    const int64_t waited = now[rank].waited_us - first.waited_us;
    if (steps > 0) share.step = absl::Seconds(seconds) / steps;
    if (share.reductions > 0) share.wait = absl::Microseconds(waited) / share.reductions;
    shares.push_back(share);
  }
  return shares;
}

std::string StragglerText(const Job& job, const Straggler& slow, const StepShare& share) {
  const Worker* worker = FindWorker(job, job.generation.message.members(slow.rank).incarnation());
  const auto say = [](absl::Duration time) {
    return time < absl::Seconds(1) ? absl::StrFormat("%.3g ms", absl::ToDoubleMilliseconds(time))
                                   : DurationText(time);
  };
  return absl::StrCat("rank ", worker->slot, " (host ", worker->host, ", pid ", worker->pid,
                      ") is the last at ", share.last, " of the last ", share.reductions,
                      " reductions, the others wait ", say(slow.lost), " of ", say(slow.step),
                      " a step for it");
}

}  // namespace

std::optional<Straggler> FindStraggler(const std::vector<StepShare>& shares) {
  if (shares.size() < 2) return std::nullopt;
  size_t slowest = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank].reductions < kFewest || shares[rank].step <= absl::ZeroDuration()) {
      return std::nullopt;
    }
    if (WorkOf(shares[rank]) > WorkOf(shares[slowest])) slowest = rank;
  }
  const StepShare& slow = shares[slowest];
  if (2 * slow.last <= slow.reductions) return std::nullopt;
  if (WorkOf(slow) <= kSlower * MedianOfOthers(shares, slowest, WorkOf)) return std::nullopt;
  return Straggler{
      static_cast<int>(slowest),
      MedianOfOthers(shares, slowest, [](const StepShare& share) { return share.wait; }),
      MedianOfOthers(shares, slowest, [](const StepShare& share) { return share.step; })};
}

void WatchStragglers(Context& context, Job& job) {
  StragglerWatch& watch = job.straggler;
  if (job.final() || !HasActiveGeneration(job)) {
    watch.text.clear();
    watch.first.clear();
    return;
  }
  const int64_t generation = job.generation.message.generation();
  const bool watches = watch.generation == generation && !watch.first.empty();
  if (watches && context.now - watch.began < kShortest) return;
  std::vector<StragglerMark> now = Marks(job);
  if (now.size() < 2) return;
  if (watch.generation != generation || watch.first.size() != now.size()) {
    watch.generation = generation;
    watch.began = context.now;
    watch.first = std::move(now);
    watch.text.clear();
    return;
  }
  const std::vector<StepShare> shares = SharesOf(job, now);
  const auto fewest = std::min_element(
      shares.begin(), shares.end(),
      [](const StepShare& a, const StepShare& b) { return a.reductions < b.reductions; });
  const absl::Duration length = context.now - watch.began;
  if (fewest->reductions < kReductions && length < kLongest) return;
  watch.began = context.now;
  watch.first = std::move(now);
  const std::optional<Straggler> slow = FindStraggler(shares);
  watch.text = slow ? StragglerText(job, *slow, shares[slow->rank]) : "";
  if (!slow || context.now < watch.said + kSayEvery) return;
  watch.said = context.now;
  AppendNotice(context, job, watch.text);
}

}  // namespace lockstep::coordinator
