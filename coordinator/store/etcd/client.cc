// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/etcd/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/store/etcd/layout.h"

namespace lockstep::coordinator {
namespace {

using ::etcdserverpb::KeyValue;
using ::etcdserverpb::RangeRequest;
using ::etcdserverpb::RangeResponse;
using ::etcdserverpb::TxnRequest;
using ::etcdserverpb::TxnResponse;

// A page has at most so many keys, each of one piece at most: etcd's answers stay below gRPC's
// limit here.
constexpr int64_t kPageKeys = 100;
constexpr int kMostAnswer = 256 << 20;
// While it does not answer, it is looked why so often.
constexpr absl::Duration kExplainEvery = absl::Seconds(5);

std::shared_ptr<grpc::Channel> Connect(const EtcdOptions& options, const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  // A coordinator's lease is short, and so is its patience with one endpoint.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMostAnswer);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = options.authority;
    tls.pem_cert_chain = options.certificate;
    tls.pem_private_key = options.key;
    credentials = grpc::SslCredentials(tls);
  }
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

// Returns whether another token may help: it is none, has expired, or users or roles have changed
// since it was given.
bool IsBadToken(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         absl::StrContains(status.error_message(), "revision of auth store is old") ||
         absl::StrContains(status.error_message(), "auth token") ||
         absl::StrContains(status.error_message(), "user name is empty");
}

// etcd's words and codes as ours.
absl::Status Meaning(const grpc::Status& status, const std::string& name) {
  if (status.ok()) return absl::OkStatus();
  const std::string said = absl::StrCat("etcd (", name, "): ", status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (absl::StrContains(status.error_message(), "space exceeded")) {
        return absl::ResourceExhaustedError(absl::StrCat(
            said,
            "; compact and defragment it, then `etcdctl alarm disarm`, or give it a larger "
            "--quota-backend-bytes"));
      }
      return absl::UnavailableError(said);  // too many requests
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::UnavailableError(absl::StrCat("etcd (", name, ") does not answer"));
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return absl::UnavailableError(said);
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::PermissionDeniedError(
          absl::StrCat(said, "; the user needs to read and write all keys of the prefix"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError(absl::StrCat(said, "; is it etcd, 3.4 or later?"));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), said);
  }
}

}  // namespace

EtcdClient::EtcdClient(EtcdOptions options) : options_(std::move(options)) {
  for (const std::string& endpoint : options_.endpoints) {
    channels_.push_back(Connect(options_, endpoint));
  }
}

std::string EtcdClient::Name() const { return absl::StrJoin(options_.endpoints, ", "); }

grpc::Status EtcdClient::Try(absl::Duration timeout, const Do& call) {
  size_t used = 0;
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mu_);
    used = current_;
    if (!token_.empty()) context.AddMetadata("token", token_);
  }
  // With one endpoint alone there is none to go to instead.
  context.set_wait_for_ready(channels_.size() == 1);
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  grpc::Status status = call(channels_[used], &context);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    absl::MutexLock lock(&mu_);
    silent_ = used;
    if (current_ == used) current_ = (used + 1) % channels_.size();
  }
  return status;
}

std::string EtcdClient::Why() {
  const absl::Time now = Clock::Real()->Now();
  std::string endpoint;
  {
    absl::MutexLock lock(&mu_);
    if (!options_.explain || now - explained_ < kExplainEvery) return why_;
    explained_ = now;
    endpoint = options_.endpoints[silent_];
  }
  std::string why = options_.explain(options_, endpoint);
  absl::MutexLock lock(&mu_);
  return why_ = std::move(why);
}

absl::Status EtcdClient::Call(absl::Duration timeout, const Do& call) {
  absl::Status status = CallOnce(timeout, call);
  if (!absl::IsUnavailable(status)) return status;
  const std::string why = Why();
  return why.empty() ? status : absl::UnavailableError(why);
}

absl::Status EtcdClient::CallOnce(absl::Duration timeout, const Do& call) {
  Clock* const clock = Clock::Real();
  const absl::Time deadline = clock->Now() + timeout;
  grpc::Status status = Try(timeout, call);
  if (!status.ok() && IsBadToken(status) && !options_.user.empty()) {
    etcdserverpb::AuthenticateRequest request;
    request.set_name(options_.user);
    request.set_password(options_.password);
    etcdserverpb::AuthenticateResponse response;
    {
      absl::MutexLock lock(&mu_);
      token_.clear();
    }
    status = Try(deadline - clock->Now(), [&](const auto& channel, grpc::ClientContext* context) {
      return etcdserverpb::Auth::NewStub(channel)->Authenticate(context, request, &response);
    });
    if (!status.ok()) return Meaning(status, Name());
    {
      absl::MutexLock lock(&mu_);
      token_ = response.token();
    }
    status = Try(deadline - clock->Now(), call);
  }
  return Meaning(status, Name());
}

absl::StatusOr<TxnResponse> EtcdClient::Txn(const TxnRequest& request, absl::Duration timeout) {
  TxnResponse response;
  LS_RETURN_IF_ERROR(Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel)->Txn(context, request, &response);
  }));
  return response;
}

absl::StatusOr<RangeResponse> EtcdClient::Range(const RangeRequest& request,
                                                absl::Duration timeout) {
  RangeResponse response;
  LS_RETURN_IF_ERROR(Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel)->Range(context, request, &response);
  }));
  return response;
}

absl::Status EtcdClient::Compact(int64_t revision, absl::Duration timeout) {
  etcdserverpb::CompactionRequest request;
  request.set_revision(revision);
  etcdserverpb::CompactionResponse response;
  return Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel)->Compact(context, request, &response);
  });
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::Grant(int64_t seconds,
                                                                   absl::Duration timeout) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(seconds);
  etcdserverpb::LeaseGrantResponse response;
  LS_RETURN_IF_ERROR(Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    return etcdserverpb::Lease::NewStub(channel)->LeaseGrant(context, request, &response);
  }));
  return response;
}

absl::StatusOr<int64_t> EtcdClient::KeepAlive(int64_t lease, absl::Duration timeout) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  LS_RETURN_IF_ERROR(Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    const auto stream = etcdserverpb::Lease::NewStub(channel)->LeaseKeepAlive(context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (answered) context->TryCancel();
    const grpc::Status ended = stream->Finish();
    return answered ? grpc::Status::OK
           : ended.ok()
               ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the lease's stream has ended")
               : ended;
  }));
  if (response.ttl() <= 0) return absl::NotFoundError("the lease is over");
  return response.ttl();
}

absl::Status EtcdClient::Revoke(int64_t lease, absl::Duration timeout) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return Call(timeout, [&](const auto& channel, grpc::ClientContext* context) {
    return etcdserverpb::Lease::NewStub(channel)->LeaseRevoke(context, request, &response);
  });
}

absl::StatusOr<std::vector<KeyValue>> EtcdClient::ReadOnce(const std::string& prefix,
                                                           absl::Time deadline) {
  std::vector<KeyValue> all;
  RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(RangeEnd(prefix));
  request.set_limit(kPageKeys);
  for (;;) {
    LS_ASSIGN_OR_RETURN(RangeResponse page, Range(request, deadline - Clock::Real()->Now()));
    if (request.revision() == 0) request.set_revision(page.header().revision());
    for (KeyValue& kv : *page.mutable_kvs()) all.push_back(std::move(kv));
    if (!page.more()) return all;
    request.set_key(all.back().key() + std::string(1, '\0'));
  }
}

absl::StatusOr<std::vector<KeyValue>> EtcdClient::ReadAll(const std::string& prefix,
                                                          absl::Duration timeout) {
  Clock* const clock = Clock::Real();
  const absl::Time deadline = clock->Now() + timeout;
  for (;;) {
    absl::StatusOr<std::vector<KeyValue>> all = ReadOnce(prefix, deadline);
    const bool again = absl::IsUnavailable(all.status()) || absl::IsOutOfRange(all.status());
    if (!again || clock->Now() >= deadline) return all;
    clock->Sleep(absl::Milliseconds(50));
  }
}

}  // namespace lockstep::coordinator
