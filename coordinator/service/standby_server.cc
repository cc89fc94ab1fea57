// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/standby_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/quiet.h"
#include "coordinator/client/trailing_keys.h"
#include "coordinator/service/door.h"

namespace lockstep::coordinator {
namespace {

constexpr int kMaxMessage = 64 << 10;  // of what is not looked at
constexpr int kMaxMetadata = 16 << 10;
constexpr size_t kMaxMemory = 64 << 20;
constexpr int kMaxStreams = 64;
constexpr int kHandshakeMillis = 10'000;
constexpr int kIdleMillis = 5'000;
constexpr int kPingMillis = 1'000;

class Refusal : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class RefuseAll : public grpc::CallbackGenericService {
 public:
  explicit RefuseAll(Door* door) : door_(door) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    door_->HasCalled(context->peer());
    std::string leader;
    {
      absl::MutexLock lock(&mu_);
      leader = leader_;
    }
    if (!leader.empty()) context->AddTrailingMetadata(kLeaderKey, leader);
    return new Refusal(grpc::Status(
        grpc::StatusCode::UNAVAILABLE,
        leader.empty()
            ? "the coordinator stands by, and none leads now"
            : absl::StrCat("the coordinator stands by: ask the one that leads, ", leader)));
  }
  void SetLeader(const std::string& address) {
    absl::MutexLock lock(&mu_);
    leader_ = address;
  }

 private:
  Door* const door_;
  absl::Mutex mu_;
  std::string leader_ ABSL_GUARDED_BY(mu_);
};

class GrpcStandby : public StandbyServer {
 public:
  GrpcStandby(bool local_users, Listener* listener, Clock* clock)
      : listener_(listener), door_({}, Admission::Limits(), local_users, clock), service_(&door_) {}

  ~GrpcStandby() override {
    listener_->Stop();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessage);
    builder.SetResourceQuota(grpc::ResourceQuota("standby").SetMaxThreads(4).Resize(kMaxMemory));
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadata);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMillis);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMillis);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC's server does not start");
    listener_->Start(
        [this](UniqueFd fd) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.fd = fd.release();
          acceptor_->HandleNewConnection(&parameters);
        },
        &door_);
    return absl::OkStatus();
  }

  void SetLeader(const std::string& address) override { service_.SetLeader(address); }

 private:
  Listener* const listener_;
  Door door_;
  RefuseAll service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

// It does not know which tokens are good, and answers nobody: whoever has a certificate will do.
std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const ServerOptions& options) {
  return TlsCredentials(IsTcpAddress(options.listen) ? options.tls : std::nullopt,
                        [](absl::string_view) { return true; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(const ServerOptions& options,
                                                                    Listener* listener,
                                                                    Clock* clock) {
  QuietGrpc();
  auto standby = std::make_unique<GrpcStandby>(options.local_users, listener, clock);
  if (absl::Status started = standby->Serve(CredentialsOf(options)); !started.ok()) return started;
  return standby;
}

}  // namespace lockstep::coordinator
