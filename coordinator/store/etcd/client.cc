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

// Of a page's keys. Each has one piece at most, so that the least of them stay below gRPC's limit
// here; after the first page it is known how many make kPageBytes.
constexpr int64_t kLeastPage = 100;
constexpr int64_t kFirstPage = 1000;
constexpr int64_t kMostPage = 10000;
constexpr int64_t kPageBytes = 16 << 20;
constexpr int kMostAnswer = 256 << 20;
// One endpoint gets so long for a page; then the next one is asked, and has twice as long.
constexpr absl::Duration kPagePatience = absl::Seconds(2);
constexpr absl::Duration kTryAgain = absl::Milliseconds(50);
constexpr int kMostReads = 4;
// While it does not answer, it is looked why so often.
constexpr absl::Duration kExplainEvery = absl::Seconds(5);
// A connection that a network swallowed is noticed by a ping that is not answered while calls wait.
// Etcd takes none that come more often.
constexpr int kPingMillis = 5000;
constexpr int kPingPatienceMillis = 2000;

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
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingPatienceMillis);
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

// Returns whether it says nothing of what became of the call, so that another endpoint may be
// asked. UNKNOWN is what etcd says of a proposal that it dropped while its leader changed, and gRPC
// of a connection that ended in the middle of a call (client/grpc_status.h); INTERNAL, of a stream
// that a proxy broke off.
bool IsNoAnswer(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return true;
    default:
      return false;
  }
}

// etcd's words and codes as ours.
absl::Status Meaning(const grpc::Status& status, const std::string& name) {
  if (status.ok()) return absl::OkStatus();
  const std::string said = absl::StrCat("etcd (", name, "): ", status.error_message());
  if (IsNoAnswer(status)) {
    return absl::UnavailableError(status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED
                                      ? absl::StrCat("etcd (", name, ") does not answer")
                                      : said);
  }
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (absl::StrContains(status.error_message(), "space exceeded")) {
        return absl::ResourceExhaustedError(absl::StrCat(
            said,
            "; compact and defragment it, then `etcdctl alarm disarm`, or give it a larger "
            "--quota-backend-bytes"));
      }
      return absl::UnavailableError(said);  // too many requests
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
  if (options_.explain) explainer_ = Thread("etcd-explain", [this] { Explain(); });
}

EtcdClient::~EtcdClient() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  explainer_.Join();
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
  absl::MutexLock lock(&mu_);
  if (!IsNoAnswer(status)) {
    silences_ = 0;
    why_.clear();
    return status;
  }
  silent_ = used;
  ++silences_;
  if (current_ == used) current_ = (used + 1) % channels_.size();
  return status;
}

std::string EtcdClient::Why() {
  const absl::Time now = Clock::Real()->Now();
  absl::MutexLock lock(&mu_);
  if (!options_.explain || silences_ < channels_.size()) return "";
  if (now - explained_ >= kExplainEvery) {
    explained_ = now;
    explain_ = true;
    changed_.NotifyAll();
  }
  return why_;
}

// It may take longer than a leader's lease has left: no call waits for it.
void EtcdClient::Explain() {
  for (;;) {
    std::string endpoint;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || explain_; });
      if (stop_) return;
      explain_ = false;
      endpoint = options_.endpoints[silent_];
    }
    std::string why = options_.explain(options_, endpoint);
    absl::MutexLock lock(&mu_);
    if (silences_ > 0) why_ = std::move(why);
  }
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

absl::StatusOr<RangeResponse> EtcdClient::ReadPage(RangeRequest* request, absl::Duration patience) {
  Clock* const clock = Clock::Real();
  const absl::Time deadline = clock->Now() + patience;
  for (absl::Duration time = kPagePatience;; time *= 2) {
    absl::StatusOr<RangeResponse> page = Range(*request, std::min(time, deadline - clock->Now()));
    if (!absl::IsUnavailable(page.status()) || clock->Now() >= deadline) return page;
    request->set_limit(std::max(kLeastPage, request->limit() / 4));
    clock->Sleep(kTryAgain);
  }
}

absl::StatusOr<std::vector<KeyValue>> EtcdClient::ReadOnce(const std::string& prefix,
                                                           absl::Duration patience) {
  std::vector<KeyValue> all;
  RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(RangeEnd(prefix));
  request.set_limit(kFirstPage);
  int64_t most = kMostPage;
  for (;;) {
    const int64_t wanted = request.limit();
    LS_ASSIGN_OR_RETURN(RangeResponse page, ReadPage(&request, patience));
    if (request.limit() < wanted) most = request.limit();
    if (request.revision() == 0) request.set_revision(page.header().revision());
    const int64_t keys = page.kvs_size(), bytes = static_cast<int64_t>(page.ByteSizeLong());
    for (KeyValue& kv : *page.mutable_kvs()) all.push_back(std::move(kv));
    if (!page.more()) return all;
    request.set_key(all.back().key() + std::string(1, '\0'));
    request.set_limit(std::clamp(keys * kPageBytes / bytes, kLeastPage, most));
  }
}

absl::StatusOr<std::vector<KeyValue>> EtcdClient::ReadAll(const std::string& prefix,
                                                          absl::Duration patience) {
  for (int reads = 1;; ++reads) {
    absl::StatusOr<std::vector<KeyValue>> all = ReadOnce(prefix, patience);
    if (!absl::IsOutOfRange(all.status()) || reads == kMostReads) return all;
  }
}

}  // namespace lockstep::coordinator
