// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/renewal.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/token.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kEvery = absl::Minutes(10);
constexpr absl::Duration kAgain = absl::Minutes(1);  // after a call that came to nothing
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kWarnEvery = absl::Hours(24);
constexpr absl::Duration kLongestWait = absl::Minutes(1);
// All nodes and workers may have come back at once: they ask one after the other.
constexpr int kSoonMillis = 500;
constexpr int kBackoffs = 8;  // of which each is 250 to 500 ms

absl::Duration Soon() {
  int wait = kSoonMillis;
  for (int i = 0; i < kBackoffs; ++i) wait += BackoffMillis(/*attempt=*/i) / 2;
  return absl::Milliseconds(wait);
}

}  // namespace

absl::StatusOr<RenewTokenRequest> RenewalOf(const ClientOptions& options) {
  LS_ASSIGN_OR_RETURN(const Token token, ParseToken(CurrentToken(options)));
  RenewTokenRequest request;
  LS_ASSIGN_OR_RETURN(const std::string hash, HashOfAuthorities(token.authority));
  request.set_authorities_hash(hash);
  return request;
}

// Returns what came of it; a token of somebody else's is none.
absl::StatusOr<std::optional<std::string>> Renewed(const ClientOptions& options,
                                                   const RenewTokenResponse& response) {
  if (response.token().empty()) return std::optional<std::string>();
  LS_ASSIGN_OR_RETURN(const Token before, ParseToken(CurrentToken(options)));
  LS_ASSIGN_OR_RETURN(const std::string text, CheckToken(response.token(), "the answer"));
  LS_ASSIGN_OR_RETURN(const Token token, ParseToken(text));
  if (token.secret != before.secret) {
    return absl::DataLossError("the coordinator answered with another token than was shown");
  }
  return std::make_optional(text);
}

ClientOptions WithCell(ClientOptions options) {
  if (options.renewed == nullptr) options.renewed = std::make_shared<RenewedToken>();
  return options;
}

bool IsRenewable(const ClientOptions& options) {
  const absl::StatusOr<Token> token = ParseToken(options.token);
  return token.ok() && !token->authority.empty() &&
         IsTcpAddress(AddressesOf(options.address).front());
}

Renewal::Renewal(const ClientOptions& options, std::shared_ptr<Route> route,
                 std::function<void(const std::string& token)> on_renewed)
    : options_(options),
      route_(std::move(route)),
      on_renewed_(std::move(on_renewed)),
      thread_("renewal", [this] { Run(); }) {}

Renewal::~Renewal() {
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.Join();
}

void Renewal::Connected() {
  absl::MutexLock lock(&mu_);
  due_ = std::min(due_, Clock::Real()->Now() + Soon());
  changed_.NotifyAll();
}

void Renewal::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      for (;;) {
        if (over_) return;
        const absl::Duration left = due_ - Clock::Real()->Now();
        if (left <= absl::ZeroDuration()) break;
        changed_.WaitFor(&mu_, std::min(left, kLongestWait));
      }
      due_ = absl::InfiniteFuture();
    }
    const absl::Duration again = Ask();
    absl::MutexLock lock(&mu_);
    due_ = std::min(due_, Clock::Real()->Now() + again);
  }
}

absl::Duration Renewal::Ask() {
  Warn(Clock::Real()->Now());
  const Route::Way way = route_->Now();
  const absl::StatusOr<RenewTokenRequest> request = RenewalOf(options_);
  if (!request.ok()) return kEvery;
  grpc::ClientContext context;
  ShowToken(options_, &context);
  SetDeadline(kCallTimeout, &context);
  {
    absl::MutexLock lock(&mu_);
    if (over_) return kEvery;
    call_ = &context;
  }
  RenewTokenResponse response;
  const grpc::Status status =
      Access::NewStub(way.channel)->RenewToken(&context, *request, &response);
  {
    absl::MutexLock lock(&mu_);
    call_ = nullptr;
  }
  // A coordinator that is away, stands by, or is of a version that renews nothing.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return kEvery;
  if (!status.ok()) return kAgain;
  const auto renewed = Renewed(options_, response);
  if (!renewed.ok()) {
    LS_LOG_WARNING << "the token's certificate is not renewed: " << renewed.status().message();
    return kEvery;
  }
  if (renewed->has_value()) {
    options_.renewed->Set(**renewed);
    if (on_renewed_) on_renewed_(**renewed);
  }
  return kEvery;
}

void Renewal::Warn(absl::Time now) {
  if (!on_renewed_ || now - warned_ < kWarnEvery) return;
  const absl::StatusOr<Token> token = ParseToken(CurrentToken(options_));
  if (!token.ok() || token->client.certificate.empty()) return;
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(token->client.certificate);
  const std::string warning = facts.ok() ? AdmissionWarning(*facts, now) : "";
  if (warning.empty()) return;
  warned_ = now;
  LS_LOG_WARNING << warning;
}

}  // namespace lockstep::coordinator
