// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/route.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/trailing_keys.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// How long one of several coordinators has to answer, at first. On a long way TLS's handshake alone
// takes longer.
constexpr absl::Duration kPatience = absl::Seconds(1);
// Addresses that were named and are no more are forgotten.
constexpr size_t kMostChannels = 16;

bool NobodyLeadsThere(const grpc::Status& status) {
  return NobodyServed(status) || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace

Route::Route(const ClientOptions& options)
    : options_(options), addresses_(AddressesOf(options.address)) {
  absl::MutexLock lock(&mu_);
  current_ = addresses_.front();
}

Route::Way Route::Now() {
  absl::MutexLock lock(&mu_);
  Way way{number_, options_, nullptr};
  way.options.address = current_;
  // A renewed certificate is shown by new connections; those that are up stay up.
  if (std::string token = CurrentToken(options_); token != token_) {
    token_ = std::move(token);
    channels_.clear();
  }
  std::shared_ptr<grpc::Channel>& channel = channels_[current_];
  if (channel == nullptr) channel = MakeChannel(way.options, several());
  way.channel = channel;
  return way;
}

void Route::Ended(const Way& way, const grpc::Status& status, const grpc::ClientContext& context) {
  if (!several() || !NobodyLeadsThere(status)) return;
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto named = trailing.find(kLeaderKey);
  absl::MutexLock lock(&mu_);
  if (way.number != number_) return;  // somebody else has noticed
  LeadTo(named == trailing.end() ? absl::string_view()
                                 : absl::string_view(named->second.data(), named->second.size()));
}

void Route::Forget() {
  absl::MutexLock lock(&mu_);
  channels_.clear();
}

void Route::LeadTo(absl::string_view leader) {
  ++number_;
  // What is said over TLS leads nowhere else than to TLS.
  const bool useful =
      !leader.empty() && leader != current_ && IsTcpAddress(leader) == IsTcpAddress(current_);
  const auto known = std::find(addresses_.begin(), addresses_.end(), leader);
  if (known != addresses_.end()) {
    place_ = static_cast<size_t>(known - addresses_.begin());
  } else if (!useful) {
    place_ = (place_ + 1) % addresses_.size();
  }
  current_ = useful ? std::string(leader) : addresses_[place_];
  if (channels_.size() > kMostChannels) channels_.clear();
}

std::shared_ptr<grpc::Channel> Route::ToLeader(absl::Duration timeout) {
  Clock* const clock = Clock::Real();
  const absl::Time deadline = clock->Now() + timeout;
  for (int attempt = 0; several() && clock->Now() < deadline; ++attempt) {
    const Way way = Now();
    grpc::ClientContext context;
    ShowToken(way.options, &context);
    // Twice as long in each round, within the time that there is.
    const size_t round = static_cast<size_t>(attempt) / addresses_.size();
    const absl::Duration patience =
        std::min(kPatience * (1 << std::min<size_t>(round, 4)), deadline - clock->Now());
    SetDeadline(patience, &context);
    // Every role may ask this; and whatever the one that leads says to it, it says it.
    Requester who;
    const grpc::Status status =
        Access::NewStub(way.channel)->WhoAmI(&context, WhoAmIRequest(), &who);
    if (!NobodyLeadsThere(status)) return way.channel;
    Ended(way, status, context);
    clock->Sleep(absl::Milliseconds(BackoffMillis(attempt)));
  }
  return Now().channel;
}

}  // namespace lockstep::coordinator
