// SPDX-License-Identifier: Apache-2.0
// The service Packages (proto/package.proto). A call holds one of gRPC's threads and a package; a
// few at a time are let in, and each piece has to go on in time. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_

#include "absl/time/time.h"
#include "coordinator/client/package_store.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/places.h"
#include "proto/package.grpc.pb.h"

namespace lockstep::coordinator {

// The calls.
class PackageService : public Packages::Service {
 public:
  // Calls that carry packages, of all services that share a store.
  struct Busy {
    // `share` and `clock` as in Places.
    Busy(absl::Duration with_each_piece, absl::Duration share, Clock* clock)
        : patience(with_each_piece), places(kMostAtOnce, share, clock) {}
    // One more than a node takes (Workdirs::kMostTransfers), so that a slow one leaves others a
    // place.
    static constexpr size_t kMostAtOnce = 3;
    const absl::Duration patience;
    Places places;
  };
  // All of them outlive this.
  PackageService(PackageStore* store, Busy* busy, const Gate* gate)
      : store_(store), busy_(busy), gate_(gate) {}

  grpc::Status HasPackage(grpc::ServerContext* context, const HasPackageRequest* request,
                          HasPackageResponse* response) override;
  grpc::Status PutPackage(grpc::ServerContext* context, grpc::ServerReader<PackagePiece>* reader,
                          PutPackageResponse* response) override;
  grpc::Status GetPackage(grpc::ServerContext* context, const GetPackageRequest* request,
                          grpc::ServerWriter<PackagePiece>* writer) override;

 private:
  PackageStore* const store_;
  Busy* const busy_;
  const Gate* const gate_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_PACKAGE_SERVICE_H_
