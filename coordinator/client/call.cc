// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/call.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/already_so.h"
#include "common/clock.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/grpc_status.h"

namespace lockstep::coordinator {
namespace {

// How long a call waits until one of several coordinators leads.
constexpr absl::Duration kUntilOneLeads = absl::Seconds(10);
// How long it is looked why one of them is not reached.
constexpr absl::Duration kPatienceWithOne = absl::Seconds(2);

// What the tries so far have shown of the connections.
class Connections {
 public:
  Connections(const ClientOptions& options, const Route& route)
      : addresses_(AddressesOf(options.address)), several_(route.several()) {}

  // Looks why there is none over `way`, for at most `left`; once for each address, but that
  // nothing is known yet of one that was `late`. Returns whether something is wrong with all.
  bool AllAreWrong(const Route::Way& way, bool late, absl::Duration left) {
    const std::string& address = way.options.address;
    if (examined_.contains(address)) return false;
    const absl::Status explained =
        ExplainConnection(way.options, several_ ? std::min(left, kPatienceWithOne) : left);
    if (!late || !explained.ok()) examined_.insert(address);
    if (explained.ok()) return false;
    if (wrong_.ok()) wrong_ = explained;
    // As long as there is another address, the cluster may be served there.
    known_wrong_ += static_cast<size_t>(std::ranges::count(addresses_, address));
    return known_wrong_ >= addresses_.size();
  }
  // Of the first address of which something is known to be.
  const absl::Status& wrong() const { return wrong_; }

 private:
  const std::vector<std::string> addresses_;
  const bool several_;
  absl::Status wrong_;
  std::set<std::string> examined_;
  size_t known_wrong_ = 0;
};

void Mark(absl::Status& status) { status.SetPayload(kUnanswered, absl::Cord()); }

// No clock of gRPC's reaches to the end of an infinite time.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

}  // namespace

absl::Status CallUntilAnswered(const ClientOptions& options, Route& route, absl::Duration timeout,
                               const CallRules& rules, Try call) {
  Clock* const clock = Clock::Real();
  // When one of several has ended it takes the next one a while to lead.
  if (route.several()) timeout = std::max(timeout, kUntilOneLeads);
  const absl::Time deadline = clock->Now() + timeout;
  Connections connections(options, route);
  grpc::Status status;
  std::string refusal;  // the coordinator's own
  bool unanswered = false;
  bool broke_off = false;  // and is not made again
  for (int attempt = 0; attempt == 0 || clock->Now() < deadline; ++attempt) {
    const Route::Way way = route.Now();
    const absl::Duration left = deadline - clock->Now();
    grpc::ClientContext context;
    ShowToken(options, &context);
    // The channel to one of several gives up soon what it does not reach; what is reached has the
    // time that is left.
    context.set_wait_for_ready(!route.several() &&
                               (attempt > 0 || !IsTcpAddress(way.options.address)));
    SetDeadline(std::min(left, kLongest), &context);
    status = call(way.channel, &context);
    if (status.ok()) return absl::OkStatus();
    if (rules.stopped && rules.stopped()) return absl::CancelledError("stopped");
    route.Ended(way, status, context);
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    const bool refused = absl::StartsWith(status.error_message(), "the coordinator ");
    unanswered |= MayHaveArrived(
        status, way.channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY);
    if (!NobodyServed(status) && !(late && route.several())) {
      if (attempt > 0 && IsAlreadySo(FromGrpc(status))) return absl::OkStatus();
      break;
    }
    broke_off = rules.once && unanswered;
    if (broke_off) break;
    if (refused) {
      refusal = status.error_message();
    } else if ((attempt == 0 || !late) && connections.AllAreWrong(way, late, left)) {
      return connections.wrong();
    }
    // Somebody else may lead at any moment.
    const absl::Duration backoff =
        absl::Milliseconds(BackoffMillis(route.several() ? std::min(attempt, 2) : attempt));
    clock->Sleep(std::min(backoff, deadline - clock->Now()));
  }
  if (NobodyServed(status) || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    if (!connections.wrong().ok() && !unanswered && refusal.empty()) return connections.wrong();
    std::string said =
        absl::StrCat(refusal.empty() ? "no coordinator answers at "
                                     : absl::StrCat(refusal, "; no other answer came from "),
                     options.address);
    if (!broke_off) absl::StrAppend(&said, " within ", absl::FormatDuration(timeout));
    absl::Status nobody = absl::UnavailableError(said);
    if (unanswered) Mark(nobody);
    return nobody;
  }
  absl::Status answer = FromGrpc(status);
  // Of the tries before it this says nothing; but what is malformed is so in each of them.
  if (unanswered && !absl::IsInvalidArgument(answer)) Mark(answer);
  return answer;
}

}  // namespace lockstep::coordinator
