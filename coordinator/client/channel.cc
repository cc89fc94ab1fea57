// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/quiet.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::string& text) {
  const absl::StatusOr<Token> token = ParseToken(text);
  LS_CHECK(token.ok()) << "a token that was not looked at";
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = token->authority;
  tls.pem_private_key = token->client.key;
  tls.pem_cert_chain = token->client.certificate;
  return grpc::SslCredentials(tls);
}

// Credentials of authorities and a certificate. All channels of a process have the same as a rule:
// those of the newest are kept, since to read them takes OpenSSL a millisecond.
class Credentials {
 public:
  std::shared_ptr<grpc::ChannelCredentials> For(const std::string& token) {
    const absl::string_view rest = PlacesOf(token).rest;
    absl::MutexLock lock(&mu_);
    if (newest_ == nullptr || rest_ != rest) {
      newest_ = MakeCredentials(token);
      rest_ = std::string(rest);
    }
    return newest_;
  }

 private:
  absl::Mutex mu_;
  std::string rest_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::ChannelCredentials> newest_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const ClientOptions& options) {
  static auto* const credentials = new Credentials();
  const std::string token = CurrentToken(options);
  if (PlacesOf(token).kind.empty() || !IsTcpAddress(options.address)) {
    return grpc::InsecureChannelCredentials();
  }
  return credentials->For(token);
}

}  // namespace

void RenewedToken::Set(const std::string& token) {
  absl::MutexLock lock(&mu_);
  token_ = token;
}

std::string RenewedToken::Get() const {
  absl::MutexLock lock(&mu_);
  return token_;
}

std::string CurrentToken(const ClientOptions& options) {
  std::string renewed = options.renewed == nullptr ? "" : options.renewed->Get();
  return renewed.empty() ? options.token : renewed;
}

std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options, bool one_of_several) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // gRPC's name for the least that one attempt to connect gets, TLS's handshake included; what it
  // waits between two attempts is not meant. A way of 200 ms makes it a second and more, and a lost
  // packet is sent again after another. A host that does not answer at all is given up sooner, by
  // the kernel, after the keepalive's timeout (TCP_USER_TIMEOUT); so the rest is for a coordinator
  // that has many handshakes to make (service/turnstile.h): who begins anew has waited for nothing.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, one_of_several ? 2000 : 20'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const int silence = static_cast<int>(absl::ToInt64Milliseconds(kSilence));
  // The server takes no pings that come more often than half of it.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, one_of_several ? silence * 6 / 10 : silence);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, one_of_several ? silence * 4 / 10 : silence);
  // Commands are rare, and pings need not wait for them.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nothing outside decides how a coordinator is reached: no proxy, no service config from DNS.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxReceivedBytes);
  return grpc::CreateCustomChannel(options.address, CredentialsFor(options), arguments);
}

void ShowToken(const ClientOptions& options, grpc::ClientContext* context) {
  const std::string token = CurrentToken(options);
  const std::string secret(PlacesOf(token).secret);
  if (!secret.empty()) context->AddMetadata(kTokenKey, secret);
}

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
}

int BackoffMillis(int attempt) {
  thread_local std::minstd_rand random(std::random_device{}());
  const int full = std::min(500, 20 << std::min(attempt, 5));
  return full / 2 + static_cast<int>(random() % (full / 2 + 1));
}

}  // namespace lockstep::coordinator
