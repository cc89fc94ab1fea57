// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/server.h"

#include <errno.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/quiet.h"
#include "coordinator/service/address.h"
#include "coordinator/service/rpc.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr const char* kCoordinatorKey = "coordinator";

class GrpcServer : public Server {
 public:
  GrpcServer(const ServerOptions& options, Clock* clock, Store* store, State state, int64_t life)
      : hub_(clock, store, std::move(state), life), service_(&hub_, options.token) {}

  ~GrpcServer() override {
    if (server_ == nullptr) return;
    // Streams never end by themselves: they are cut at once, and their peers reconnect.
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status Listen(const std::string& address) {
    // gRPC gives no reason, so the likely one is looked for first.
    absl::string_view path = address;
    if (absl::ConsumePrefix(&path, "unix:")) {
      const size_t slash = path.rfind('/');
      const std::string folder(slash == path.npos ? "." : path.substr(0, slash + 1));
      if (::access(folder.c_str(), W_OK | X_OK) != 0) {
        return ErrnoStatus(errno,
                           absl::StrCat("cannot listen on '", address, "': folder ", folder));
      }
    }
    int port = 0;
    grpc::ServerBuilder builder;
    // Without this two coordinators would share a port in silence.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(16 << 20);
    builder.SetResourceQuota(grpc::ResourceQuota("coordinator").SetMaxThreads(8));
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    const bool unix_socket = absl::StartsWith(address, "unix");
    if (server_ == nullptr || (!unix_socket && port == 0)) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot listen on '", address,
                       "': the address is in use or not allowed; is another coordinator running?"));
    }
    address_ =
        unix_socket ? address : absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

 private:
  Hub hub_;
  RpcService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Counts this coordinator in `store`, and takes its count out of `rows`. Of two that start at the
// same time only one gets a number.
absl::StatusOr<int64_t> BeginLife(std::vector<StoredRow>& rows, Store* store) {
  CoordinatorRecord record;
  int64_t revision = 0;
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const StoredRow& row) { return row.key == kCoordinatorKey; });
  if (found != rows.end()) {
    if (!record.ParseFromString(found->value)) {
      return absl::DataLossError(
          absl::StrCat("row '", kCoordinatorKey, "' of the journal is damaged"));
    }
    revision = found->revision;
    rows.erase(found);
  }
  record.set_lives(record.lives() + 1);
  const Put put = {kCoordinatorKey, record.SerializeAsString(), revision};
  LS_RETURN_IF_ERROR(store->PutBatch({put}).status());
  return record.lives();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Clock* clock,
                                                      Store* store) {
  QuietGrpc();
  LS_RETURN_IF_ERROR(CheckListenAddress(options.listen));
  LS_RETURN_IF_ERROR(CheckFree(options.listen));
  LS_ASSIGN_OR_RETURN(std::vector<StoredRow> stored, store->GetAll());
  LS_ASSIGN_OR_RETURN(const int64_t life, BeginLife(stored, store));
  std::vector<Row> rows;
  for (const StoredRow& row : stored) rows.push_back({row.key, row.value});
  LS_ASSIGN_OR_RETURN(State state, Restore(rows, options.limits, clock->Now()));
  if (life > 1) {
    LS_LOG_INFO << "goes on from the journal: " << state.jobs.size() << " jobs, "
                << state.nodes.size() << " nodes; coordinator number " << life << " of it";
  }
  auto server = std::make_unique<GrpcServer>(options, clock, store, std::move(state), life);
  LS_RETURN_IF_ERROR(server->Listen(options.listen));
  return server;
}

}  // namespace lockstep::coordinator
