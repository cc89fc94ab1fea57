// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/quiet.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/door.h"
#include "coordinator/service/file_exchange.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/package_service.h"
#include "coordinator/service/rpc.h"

namespace lockstep::coordinator {
namespace {

// What a caller can make the coordinator hold before it has shown a token. The largest messages
// that are sent are a job file and an agent's list of 4,096 workers, both far below a MiB.
constexpr int kMaxMessage = 4 << 20;
constexpr int kMaxMetadata = 16 << 10;
constexpr int kMaxStreams = 64;  // of one connection; the launcher's programs use three
constexpr size_t kMaxMemory = size_t{1} << 30;
// Descriptors for everything but connections.
constexpr size_t kOtherDescriptors = 64;
constexpr int64_t kMostPackagesInMemory = 256 << 20;
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kIdle = absl::Minutes(1);  // without a call

std::vector<std::string> Secrets(const ServerOptions& options) {
  std::vector<std::string> secrets;
  if (options.token.empty()) return secrets;
  secrets.push_back(options.token);
  secrets.insert(secrets.end(), options.old_tokens.begin(), options.old_tokens.end());
  return secrets;
}

Admission::Limits ConnectionLimits() {
  Admission::Limits limits;
  rlimit open = {};
  if (::getrlimit(RLIMIT_NOFILE, &open) != 0) return limits;
  const size_t files = std::max<size_t>(open.rlim_cur, 2 * kOtherDescriptors);
  limits.connections = std::min(limits.connections, files - kOtherDescriptors);
  limits.unproven = std::min(limits.unproven, limits.connections / 2);
  limits.unproven_of_host = std::min(limits.unproven_of_host, limits.connections / 4);
  return limits;
}

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  builder.SetResourceQuota(grpc::ResourceQuota("coordinator").SetMaxThreads(8).Resize(kMaxMemory));
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

class GrpcServer : public Server {
 public:
  GrpcServer(const ServerOptions& options, Clock* clock, Store* store, Beginning beginning)
      : hub_(clock, store, std::move(beginning), options.on_broken, options.on_later),
        door_(Secrets(options), ConnectionLimits(), clock),
        packages_(PackageSettings(options)),
        service_(&hub_, &door_, &packages_),
        files_(&hub_,
               [this](const grpc::ServerContext& caller) {
                 return service_.CheckToken(caller.peer(), caller.client_metadata());
               }),
        package_service_(&packages_,
                         [this](const grpc::ServerContext& caller) {
                           return service_.CheckToken(caller.peer(), caller.client_metadata());
                         }),
        tls_(IsTcpAddress(options.listen) ? options.tls : std::nullopt) {}

  ~GrpcServer() override {
    if (listener_ != nullptr) listener_->Stop();
    if (server_ == nullptr) return;
    // Streams never end by themselves: they are cut at once, and their peers reconnect.
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status Serve(Listener* listener, std::unique_ptr<Listener> own) {
    grpc::ServerBuilder builder;
    SetLimits(builder);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, Credentials());
    builder.RegisterService(&service_);
    builder.RegisterService(&files_);
    builder.RegisterService(&package_service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC's server does not start");
    own_listener_ = std::move(own);
    listener_ = listener;
    listener_->Start(
        [this](UniqueFd fd) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.fd = fd.release();
          acceptor_->HandleNewConnection(&parameters);
        },
        &door_);
    return absl::OkStatus();
  }

  const std::string& address() const override { return listener_->address(); }

 private:
  std::shared_ptr<grpc::ServerCredentials> Credentials() const {
    if (!tls_.has_value()) return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions options(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    options.pem_key_cert_pairs.push_back({tls_->key, tls_->certificate});
    return grpc::SslServerCredentials(options);
  }

  // Jobs that have not ended need theirs.
  PackageStore::Settings PackageSettings(const ServerOptions& options) {
    PackageStore::Settings settings;
    settings.folder = options.packages;
    if (settings.folder.empty()) settings.most_bytes = kMostPackagesInMemory;
    settings.in_use = [this] {
      std::set<std::string> used;
      const ListJobsResponse running = hub_.List(/*include_ended=*/false);
      for (const JobStatus& job : running.jobs()) {
        const auto described = hub_.Describe(job.job_id());
        if (described.ok()) used.insert(PackageOf(described->spec().workdir()));
      }
      return used;
    };
    return settings;
  }

  Hub hub_;
  Door door_;
  PackageStore packages_;
  RpcService service_;
  FileExchange files_;
  PackageService package_service_;
  const std::optional<Certified> tls_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> own_listener_;
  Listener* listener_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Clock* clock,
                                                      Store* store) {
  QuietGrpc();
  const bool reachable = options.plaintext || options.tls.has_value();
  if (IsTcpAddress(options.listen) && options.token.empty()) {
    LS_RETURN_IF_ERROR(CheckListenAddress(options.listen, reachable));
    return absl::FailedPreconditionError(
        absl::StrCat("'", options.listen, "' can be reached by every user of this machine: that ",
                     "needs a token; listen on a Unix socket or give one"));
  }
  std::unique_ptr<Listener> own;
  if (options.listener == nullptr) {
    LS_ASSIGN_OR_RETURN(own, Listener::Bind(options.listen, reachable));
  }
  Listener* const listener = own == nullptr ? options.listener : own.get();
  LS_ASSIGN_OR_RETURN(Beginning beginning, Begin(store, options.limits, clock->Now()));
  if (beginning.speaker.epoch > 1) {
    LS_LOG_INFO << "goes on from the journal: " << beginning.state.jobs.size() << " jobs, "
                << beginning.state.nodes.size() << " nodes; coordinator number "
                << beginning.speaker.epoch << " of it";
  }
  auto server = std::make_unique<GrpcServer>(options, clock, store, std::move(beginning));
  LS_RETURN_IF_ERROR(server->Serve(listener, std::move(own)));
  return server;
}

}  // namespace lockstep::coordinator
