// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/package_service.h"

#include <string>

#include "coordinator/client/grpc_status.h"

namespace lockstep::coordinator {
namespace {

constexpr int kMostAtOnce = 2;
constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

class PackageService::Place {
 public:
  explicit Place(PackageService* service) : service_(service) {
    absl::MutexLock lock(&service_->mu_);
    taken_ = service_->busy_ < kMostAtOnce;
    if (taken_) ++service_->busy_;
  }
  ~Place() {
    absl::MutexLock lock(&service_->mu_);
    if (taken_) --service_->busy_;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  grpc::Status status() const {
    if (taken_) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        "the coordinator carries other jobs' workdirs now; try again in a while");
  }

 private:
  PackageService* const service_;
  bool taken_ = false;
};

grpc::Status PackageService::HasPackage(grpc::ServerContext* context,
                                        const HasPackageRequest* request,
                                        HasPackageResponse* response) {
  if (grpc::Status status = authorize_(*context); !status.ok()) return status;
  response->set_has(store_->Has(request->id()));
  return grpc::Status::OK;
}

grpc::Status PackageService::PutPackage(grpc::ServerContext* context,
                                        grpc::ServerReader<PackagePiece>* reader,
                                        PutPackageResponse*) {
  if (grpc::Status status = authorize_(*context); !status.ok()) return status;
  const Place place(this);
  if (!place.status().ok()) return place.status();
  std::string id, bytes;
  PackagePiece piece;
  while (reader->Read(&piece)) {
    if (id.empty()) id = piece.id();
    if (static_cast<int64_t>(bytes.size() + piece.data().size()) > kMostPackedBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a package has too many bytes");
    }
    bytes += piece.data();
  }
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  return ToGrpc(store_->Put(id, bytes));
}

grpc::Status PackageService::GetPackage(grpc::ServerContext* context,
                                        const GetPackageRequest* request,
                                        grpc::ServerWriter<PackagePiece>* writer) {
  if (grpc::Status status = authorize_(*context); !status.ok()) return status;
  const Place place(this);
  if (!place.status().ok()) return place.status();
  const absl::StatusOr<std::string> bytes = store_->Get(request->id());
  if (!bytes.ok()) return ToGrpc(bytes.status());
  PackagePiece piece;
  for (size_t at = 0; at < bytes->size(); at += kPiece) {
    piece.set_data(bytes->substr(at, kPiece));
    if (!writer->Write(piece)) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

}  // namespace lockstep::coordinator
