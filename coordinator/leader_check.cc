// SPDX-License-Identifier: Apache-2.0
#include "coordinator/leader_check.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"
#include "coordinator/client/access.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kPause = absl::Seconds(1);
// A leader takes what `init` wrote anew within seconds.
constexpr absl::Duration kUntilRenewed = absl::Seconds(5);

// Else it is not there, or not yet, or it is not known what it has against the token.
bool IsRefusal(const absl::Status& said) {
  return absl::IsFailedPrecondition(said) || absl::IsPermissionDenied(said) ||
         absl::IsUnauthenticated(said);
}

}  // namespace

LeaderCheck::LeaderCheck(std::string token_file) : token_file_(std::move(token_file)) {
  if (!token_file_.empty()) thread_ = Thread("leader check", [this] { Run(); });
}

LeaderCheck::~LeaderCheck() {
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void LeaderCheck::SetLeader(const std::string& address) {
  absl::MutexLock lock(&mu_);
  leader_ = address;
  changed_.NotifyAll();
}

void LeaderCheck::Run() {
  for (;;) {
    std::string leader;
    {
      absl::MutexLock lock(&mu_);
      while (!over_ && leader_.empty()) changed_.WaitFor(&mu_, absl::InfiniteDuration());
      if (over_) return;
      leader = leader_;
    }
    absl::Status said = Look(leader);
    if (IsRefusal(said)) {
      if (!AwaitAnother(leader, kUntilRenewed)) continue;
      said = Look(leader);
    }
    if (IsRefusal(said)) {
      LS_LOG_WARNING << "the leader at " << leader << " does not take this coordinator's token ("
                     << said.message()
                     << "): if this one led, nodes and users of that one would be let in no more. "
                     << "Where the state directories differ stop this one, copy that of " << leader
                     << " to this host, and start it again";
    }
    const bool answered = said.ok() || IsRefusal(said);
    if (!answered) AwaitAnother(leader, kPause);
    absl::MutexLock lock(&mu_);
    if (answered && leader_ == leader) leader_.clear();
  }
}

bool LeaderCheck::AwaitAnother(const std::string& leader, absl::Duration time) {
  const absl::Time until = Clock::Real()->Now() + time;
  absl::MutexLock lock(&mu_);
  while (!over_ && leader_ == leader) {
    const absl::Duration left = until - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return true;
    changed_.WaitFor(&mu_, left);
  }
  return false;
}

absl::Status LeaderCheck::Look(const std::string& leader) const {
  const absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(token_file_);
  if (!tokens.ok() || tokens->empty()) return absl::OkStatus();  // the coordinator itself says so
  ClientOptions options;
  options.address = leader;
  absl::Status first;
  for (const std::string& token : *tokens) {
    options.token = token;
    absl::Status said = WhoAmI(options, kPatience).status();
    if (said.ok() && first.ok()) {
      LS_LOG_INFO << "the leader at " << leader << " takes its token";
    } else if (said.ok()) {
      LS_LOG_WARNING << "the leader at " << leader << " takes an older token of " << token_file_
                     << ", and not yet the newest: start that one again, or, where the newest was "
                     << "made on this host alone, copy its state directory to this host";
    }
    if (said.ok() || !IsRefusal(said)) return said;
    if (first.ok()) first = said;
  }
  return first;
}

}  // namespace lockstep::coordinator
