// SPDX-License-Identifier: Apache-2.0
// The service Packages (proto/package.proto). A call holds one of gRPC's threads and a package; a
// few at a time are let in. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_

#include <functional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "coordinator/client/package_store.h"
#include "proto/package.grpc.pb.h"

namespace lockstep::coordinator {

class PackageService : public Packages::Service {
 public:
  // Errors: PERMISSION_DENIED for a caller that may not.
  using Authorize = std::function<grpc::Status(const grpc::ServerContext&)>;
  // `store` outlives this.
  PackageService(PackageStore* store, Authorize authorize)
      : store_(store), authorize_(std::move(authorize)) {}

  grpc::Status HasPackage(grpc::ServerContext* context, const HasPackageRequest* request,
                          HasPackageResponse* response) override;
  grpc::Status PutPackage(grpc::ServerContext* context, grpc::ServerReader<PackagePiece>* reader,
                          PutPackageResponse* response) override;
  grpc::Status GetPackage(grpc::ServerContext* context, const GetPackageRequest* request,
                          grpc::ServerWriter<PackagePiece>* writer) override;

 private:
  // A place among those that are let in, until it is destroyed.
  class Place;

  PackageStore* const store_;
  const Authorize authorize_;
  absl::Mutex mu_;
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_
