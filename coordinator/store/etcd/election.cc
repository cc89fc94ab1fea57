// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/etcd/election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

using ::etcdserverpb::Compare;
using ::etcdserverpb::TxnRequest;

// How often it is looked whether somebody leads.
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
constexpr absl::Duration kTryAgain = absl::Milliseconds(50);
// How long one endpoint may take, where the last one was quick, and at most.
constexpr absl::Duration kPatience = absl::Milliseconds(500);
constexpr absl::Duration kMostPatience = absl::Seconds(2);
constexpr absl::Duration kFarewell = absl::Milliseconds(500);
// A lease lasts as long as so many answers: the two that it takes to lead with it, and one that
// renews it while the one before is still on its way.
constexpr int kAnswersOfLease = 4;

// Of the time that etcd gives, what this clock may not count wrongly.
absl::Duration Usable(absl::Duration granted) { return granted * 9 / 10; }

}  // namespace

Election::Election(EtcdClient* etcd, Clock* clock, EtcdLayout layout, std::string address,
                   absl::Duration lease, Callbacks callbacks)
    : etcd_(etcd),
      clock_(clock),
      layout_(std::move(layout)),
      address_(std::move(address)),
      lease_time_(lease),
      callbacks_(std::move(callbacks)),
      patience_(etcd->has_several() ? kPatience : kMostPatience),
      thread_("coord-election", [this] { Run(); }) {}

Election::~Election() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    until_ = absl::InfinitePast();
  }
  changed_.NotifyAll();
  thread_.Join();
  // Best effort: it ends by itself. An etcd that was slow to answer is given as long as ever.
  if (lease_ != 0) etcd_->Revoke(lease_, patience_).IgnoreError();
}

absl::Time Election::Until() const {
  absl::MutexLock lock(&mu_);
  return until_;
}

bool Election::Leads() const { return clock_->Now() < Until(); }

int64_t Election::created() const {
  absl::MutexLock lock(&mu_);
  return created_;
}

void Election::Deposed() {
  absl::MutexLock lock(&mu_);
  deposed_ = true;
  until_ = absl::InfinitePast();
  changed_.NotifyAll();
}

bool Election::Wait(absl::Duration time) {
  const absl::Time end = clock_->Now() + time;
  absl::MutexLock lock(&mu_);
  while (!stopping_ && !deposed_ && clock_->Now() < end) {
    changed_.WaitFor(&mu_, end - clock_->Now());
  }
  return !stopping_;
}

void Election::WarnOnChange(const std::string& trouble) {
  if (trouble != said_ && !trouble.empty()) {
    LS_LOG_WARNING << trouble;
  }
  said_ = trouble;
}

void Election::TellLeader(const std::string& address) {
  if (told_leader_ && address == known_leader_) return;
  told_leader_ = true;
  known_leader_ = address;
  if (callbacks_.on_leader) callbacks_.on_leader(address);
}

template <typename Call>
auto Election::Ask(absl::Duration most, const Call& call) {
  const absl::Time sent = clock_->Now();
  auto answer = call(std::min(patience_, most));
  const absl::Duration took = clock_->Now() - sent;
  if (answer.ok()) answers_took_ = {answers_took_.second, took};
  // With one endpoint there is none to go to instead.
  patience_ = std::clamp(2 * took, etcd_->has_several() ? kPatience : kMostPatience, kMostPatience);
  return answer;
}

absl::Duration Election::NeededLease() const {
  const absl::Duration answer = std::min(answers_took_.first, answers_took_.second);
  return std::max(lease_time_, absl::Ceil(kAnswersOfLease * answer, absl::Seconds(1)));
}

bool Election::Look() {
  etcdserverpb::RangeRequest request;
  request.set_key(layout_.Leader());
  const auto found =
      Ask(kMostPatience, [&](absl::Duration timeout) { return etcd_->Range(request, timeout); });
  if (!found.ok()) {
    WarnOnChange(absl::StrCat("cannot see who leads: ", found.status().message()));
    return false;
  }
  WarnOnChange("");
  // The key may be its own: a call that was given up may have come late.
  if (found->kvs().empty() || (lease_ != 0 && found->kvs(0).lease() == lease_)) return true;
  EtcdLeader leader;
  TellLeader(leader.ParseFromString(found->kvs(0).value()) ? leader.address() : "");
  return false;
}

absl::Status Election::HaveLease() {
  const absl::Time sent = clock_->Now();
  const absl::Duration needed = NeededLease();
  if (lease_ != 0 && (asked_ < needed || asked_ > 2 * needed)) {
    etcd_->Revoke(lease_, kFarewell).IgnoreError();  // it ends by itself, too
    lease_ = 0;
  }
  if (lease_ != 0 && sent < renew_at_) return absl::OkStatus();
  if (lease_ != 0) {
    const auto left = Ask(
        kMostPatience, [&](absl::Duration timeout) { return etcd_->KeepAlive(lease_, timeout); });
    if (left.ok()) {
      renew_at_ = sent + granted_ / 4;
      return absl::OkStatus();
    }
    if (!absl::IsNotFound(left.status())) return left.status();
    lease_ = 0;
  }
  // How long the answer takes may show that it is to be a longer one.
  for (int i = 0; i < 2 && (lease_ == 0 || asked_ < NeededLease()); ++i) {
    asked_ = NeededLease();
    LS_ASSIGN_OR_RETURN(const auto granted, Ask(kMostPatience, [&](absl::Duration timeout) {
                          return etcd_->Grant(absl::ToInt64Seconds(asked_), timeout);
                        }));
    lease_ = granted.id();
    granted_ = absl::Seconds(granted.ttl());
  }
  renew_at_ = clock_->Now();  // how old it is when it comes is not known
  return absl::OkStatus();
}

absl::Status Election::Stand() {
  LS_RETURN_IF_ERROR(HaveLease());
  const absl::Time over = clock_->Now() + granted_;
  TxnRequest request;
  Compare* const none = request.add_compare();
  none->set_key(layout_.Leader());
  none->set_target(Compare::CREATE);
  none->set_create_revision(0);
  EtcdLeader leader;
  leader.set_address(address_);
  auto* const put = request.add_success()->mutable_request_put();
  put->set_key(layout_.Leader());
  put->set_value(leader.SerializeAsString());
  put->set_lease(lease_);
  request.add_failure()->mutable_request_range()->set_key(layout_.Leader());
  // Tried again when the reply is lost: the second answer says what became of the first.
  absl::StatusOr<etcdserverpb::TxnResponse> answer;
  do {
    answer =
        Ask(kMostPatience, [&](absl::Duration timeout) { return etcd_->Txn(request, timeout); });
  } while (absl::IsUnavailable(answer.status()) && clock_->Now() < over && Wait(kTryAgain));
  LS_RETURN_IF_ERROR(answer.status());
  int64_t created = answer->header().revision();
  if (!answer->succeeded()) {
    const auto& kvs = answer->responses(0).response_range().kvs();
    if (kvs.empty() || kvs[0].lease() != lease_) {
      return absl::AbortedError("another coordinator was faster");
    }
    created = kvs[0].create_revision();
  }
  // However long all that took: it leads from here on, if it still has the lease.
  const absl::Time sent = clock_->Now();
  LS_ASSIGN_OR_RETURN(const int64_t left, Ask(kMostPatience, [&](absl::Duration timeout) {
                        return etcd_->KeepAlive(lease_, timeout);
                      }));
  absl::MutexLock lock(&mu_);
  created_ = created;
  until_ = sent + Usable(absl::Seconds(left));
  return absl::OkStatus();
}

absl::Status Election::Renew() {
  const absl::Time sent = clock_->Now();
  const absl::Time until = Until();
  if (sent >= until) return absl::DeadlineExceededError("its lease could not be renewed in time");
  const auto left =
      Ask(until - sent, [&](absl::Duration timeout) { return etcd_->KeepAlive(lease_, timeout); });
  if (absl::IsNotFound(left.status())) return left.status();
  if (!left.ok()) {
    WarnOnChange(absl::StrCat("the leader's lease is not renewed: ", left.status().message()));
    return absl::OkStatus();  // while there is time
  }
  WarnOnChange("");
  absl::MutexLock lock(&mu_);
  // Once it was over it stays over.
  if (!deposed_ && clock_->Now() < until_) until_ = sent + Usable(absl::Seconds(*left));
  return absl::OkStatus();
}

void Election::Lose(const std::string& why) {
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    until_ = absl::InfinitePast();
  }
  if (callbacks_.on_lost) callbacks_.on_lost(absl::AbortedError(why));
}

void Election::Run() {
  for (;;) {
    if (Look()) {
      const absl::Status stood = Stand();
      if (stood.ok()) break;
      if (!absl::IsAborted(stood)) {
        // It may have the key, without knowing it.
        if (lease_ != 0) etcd_->Revoke(lease_, kFarewell).IgnoreError();
        lease_ = 0;
        WarnOnChange(absl::StrCat("cannot stand for election: ", stood.message()));
        TellLeader("");
      }
    } else if (told_leader_ && !known_leader_.empty()) {
      HaveLease().IgnoreError();  // etcd writes to its disk to grant one: that is done by then
    }
    if (!Wait(kLookEvery)) return;
  }
  TellLeader(address_);
  if (callbacks_.on_won) callbacks_.on_won();
  for (;;) {
    const absl::Time before = Until();
    if (!Wait(kTryAgain)) return;
    {
      absl::MutexLock lock(&mu_);
      if (deposed_) break;
    }
    // Renewed when a quarter of it is over.
    if (clock_->Now() < before - Usable(granted_) * 3 / 4) continue;
    if (const absl::Status renewed = Renew(); !renewed.ok()) {
      return Lose(absl::StrCat("this coordinator leads no more: ", renewed.message()));
    }
  }
  Lose("this coordinator leads no more: etcd has another leader's key");
}

}  // namespace lockstep::coordinator
