// SPDX-License-Identifier: Apache-2.0
// gRPC's server with all services, for callers of one kind: whoever comes over TCP, or one user of
// this machine on the Unix socket. gRPC does not say on which connection a call came, so that each
// user whom the kernel names gets a server of their own.
// Thread-safety: thread-compatible; the calls that it serves are on gRPC's threads.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_FRONT_H_
#define LOCKSTEP_COORDINATOR_SERVICE_FRONT_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <optional>
#include <string>

#include "common/fd.h"
#include "coordinator/service/access_service.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/file_exchange.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/package_service.h"
#include "coordinator/service/rpc.h"

namespace lockstep::coordinator {

class Front {
 public:
  // What all fronts of a coordinator have; outlives them.
  struct Shared {
    Hub* hub = nullptr;
    Door* door = nullptr;
    Audit* audit = nullptr;
    PackageStore* packages = nullptr;
    Transfers* transfers = nullptr;
    PackageService::Busy* busy = nullptr;
    const TokenIssuer* issuer = nullptr;
  };
  // `by_socket`: as of Gate.
  Front(const Shared& shared, absl::StatusOr<Requester> by_socket);
  ~Front();  // cuts all connections

  // Begins to serve. False: gRPC's server does not start.
  bool Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Serves a connection. REQUIRES: Serve has returned true.
  void Take(UniqueFd connection);

 private:
  const Gate gate_;
  RpcService service_;
  AccessService access_;
  FileExchange files_;
  PackageService package_service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_FRONT_H_
