// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/waiter.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "common/clock.h"

namespace lockstep {
namespace {

// Pauses before the first yield: about 50 us.
constexpr int kSpins = 2000;
constexpr absl::Duration kYieldFor = absl::Milliseconds(1);
// The longest sleep: a wake that was lost with a killed process costs no more.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
// The same where more than words is watched.
constexpr absl::Duration kWatchSlice = absl::Milliseconds(1);

}  // namespace

ShmWaiter::ShmWaiter(RankHeader* own, int64_t generation, std::vector<Peer> peers,
                     const LifePage* life, const AbortFlag* abort, FlightRecorder* recorder,
                     bool may_spin)
    : own_(own),
      generation_(generation),
      peers_(std::move(peers)),
      life_(life),
      abort_(abort),
      recorder_(recorder),
      spins_(may_spin ? kSpins : 1) {}

bool ShmWaiter::SharesCpu(size_t peer) const {
  return peers_[peer].header->cpu.load(std::memory_order_relaxed) == ::sched_getcpu();
}

void ShmWaiter::Ring() {
  own_->cpu.store(::sched_getcpu(), std::memory_order_relaxed);
  // Sequentially consistent on both sides: either the sleeper sees the new bell, or we see that it
  // sleeps.
  own_->bell.fetch_add(1, std::memory_order_seq_cst);
  for (const Peer& peer : peers_) {
    if (peer.header->sleeping.load(std::memory_order_seq_cst) == 0) continue;
    FutexWakeAll(&own_->bell);
    return;
  }
}

bool ShmWaiter::HasLeft(const Peer& peer) const {
  return peer.header->left.load(std::memory_order_acquire) == PackStamp(generation_, 1);
}

absl::Status ShmWaiter::CheckAlive() const {
  if (abort_->IsSet()) return abort_->status();
  if (life_ == nullptr) return absl::OkStatus();
  for (const Peer& peer : peers_) {
    if (peer.life_slot < 0 || life_->Get(peer.life_slot) != LifePage::State::kDead) continue;
    if (HasLeft(peer)) continue;
    life_->WakeWaiters(peer.life_slot);  // the kernel woke one sleeper only
    const Peer& cause = FirstCause(peer);
    own_->accused.store(PackStamp(generation_, static_cast<uint64_t>(cause.index) + 1),
                        std::memory_order_release);
    return WithEnd(
        absl::AbortedError(absl::StrCat("rank ", cause.rank, " died (pid ", cause.pid, ")")),
        {EndCause::kPeerDied, cause.rank});
  }
  return absl::OkStatus();
}

const ShmWaiter::Peer& ShmWaiter::FirstCause(const Peer& dead) const {
  const Peer* cause = &dead;
  for (size_t steps = 0; steps < peers_.size(); ++steps) {  // a chain, at most through everyone
    const uint64_t word = cause->header->accused.load(std::memory_order_acquire);
    if (StampGeneration(word) != generation_ || StampValue(word) == 0) return *cause;
    const int accused = static_cast<int>(StampValue(word)) - 1;
    const auto found = std::find_if(peers_.begin(), peers_.end(),
                                    [&](const Peer& peer) { return peer.index == accused; });
    if (found == peers_.end()) return *cause;
    cause = &*found;
  }
  return *cause;
}

absl::Status ShmWaiter::Pause(size_t peer, uint32_t bell, absl::Time deadline, Progress* progress) {
  LS_RETURN_IF_ERROR(CheckAlive());
  const absl::Time now = Clock::Real()->Now();
  if (now >= deadline) return absl::DeadlineExceededError("");
  if (progress->begin == absl::InfinitePast()) {
    progress->begin = now;
    recorder_->Waiting(peers_[peer].rank);
  }
  if (!progress->sleeps) {
    ::sched_yield();
    progress->sleeps = now - progress->begin >= kYieldFor;
    return absl::OkStatus();
  }
  if (watch_) LS_RETURN_IF_ERROR(watch_());
  Sleep(peer, bell, deadline - now);
  return absl::OkStatus();
}

void ShmWaiter::Sleep(size_t peer, uint32_t bell, absl::Duration longest) {
  FutexWord words[kMaxFutexWords];
  size_t count = 0;
  words[count++] = {&peers_[peer].header->bell, bell};
  words[count++] = {abort_->word(), 0};
  if (life_ != nullptr) {
    for (const Peer& other : peers_) {
      if (other.life_slot < 0) continue;
      if (HasLeft(other)) continue;
      if (count == kMaxFutexWords) break;  // the others are looked at after each slice
      words[count] = life_->Watch(other.life_slot);
      // Dead just now: the next look finds it.
      if (life_->Get(other.life_slot) == LifePage::State::kDead) return;
      ++count;
    }
  }
  own_->sleeping.store(1, std::memory_order_seq_cst);
  FutexWaitAny(absl::MakeConstSpan(words, count), std::min(longest, watch_ ? kWatchSlice : kSlice));
  own_->sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace lockstep
