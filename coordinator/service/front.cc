// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/front.h"

#include <grpcpp/server_builder.h>

#include <chrono>

#include "coordinator/client/channel.h"

namespace lockstep::coordinator {
namespace {

// What a caller can make the coordinator hold before it has shown a token. The largest messages
// that are sent are a job file and an agent's list of 4,096 workers, both far below a MiB.
constexpr int kMaxMessage = 4 << 20;
constexpr int kMaxMetadata = 16 << 10;
constexpr int kMaxStreams = 64;  // of one connection; the launcher's programs use three
constexpr size_t kMaxMemory = size_t{1} << 30;
// One thread answers while all places for files and packages are taken, and one waits for calls.
constexpr int kMaxThreads = 10;
static_assert(PackageService::Busy::kMostAtOnce + 2 * Transfers::kMost + 2 < kMaxThreads);
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kIdle = absl::Minutes(1);  // without a call

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  builder.SetResourceQuota(
      grpc::ResourceQuota("coordinator").SetMaxThreads(kMaxThreads).Resize(kMaxMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadata);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Millis(kHandshake));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Millis(kIdle));
  // As the clients' side (channel.cc), which may ping twice as often as it does.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(kSilence));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(kSilence));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(kSilence / 2));
}

}  // namespace

Front::Front(const Shared& shared, absl::StatusOr<Requester> by_socket)
    : gate_(shared.hub, shared.door, shared.audit, std::move(by_socket)),
      service_(shared.hub, &gate_, shared.audit, shared.packages),
      access_(shared.hub, &gate_, shared.audit, shared.issuer),
      files_(shared.hub, shared.transfers, &gate_),
      package_service_(shared.packages, shared.busy, &gate_) {}

Front::~Front() {
  if (server_ == nullptr) return;
  // Streams never end by themselves: they are cut at once, and their peers reconnect.
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

bool Front::Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc::ServerBuilder builder;
  SetLimits(builder);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(&service_);
  builder.RegisterService(&access_);
  builder.RegisterService(&files_);
  builder.RegisterService(&package_service_);
  server_ = builder.BuildAndStart();
  return server_ != nullptr;
}

void Front::Take(UniqueFd connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.release();
  acceptor_->HandleNewConnection(&parameters);
}

}  // namespace lockstep::coordinator
