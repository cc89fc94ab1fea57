// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/package_service.h"

#include <string>

#include "coordinator/client/grpc_status.h"
#include "coordinator/service/in_time.h"

namespace lockstep::coordinator {
namespace {

constexpr int kMostAtOnce = 2;
constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

class PackageService::Place {
 public:
  explicit Place(Busy* busy) : busy_(busy) {
    absl::MutexLock lock(&busy_->mu);
    taken_ = busy_->calls < kMostAtOnce;
    if (taken_) ++busy_->calls;
  }
  ~Place() {
    absl::MutexLock lock(&busy_->mu);
    if (taken_) --busy_->calls;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  grpc::Status status() const {
    if (taken_) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        "the coordinator carries other jobs' workdirs now; try again in a while");
  }

 private:
  Busy* const busy_;
  bool taken_ = false;
};

grpc::Status PackageService::HasPackage(grpc::ServerContext* context,
                                        const HasPackageRequest* request,
                                        HasPackageResponse* response) {
  const absl::StatusOr<Requester> who = gate_->Admit("Packages/HasPackage", *context);
  if (!who.ok()) return ToGrpc(who.status());
  response->set_has(store_->Has(request->id()));
  return grpc::Status::OK;
}

grpc::Status PackageService::PutPackage(grpc::ServerContext* context,
                                        grpc::ServerReader<PackagePiece>* reader,
                                        PutPackageResponse*) {
  const absl::StatusOr<Requester> who = gate_->Admit("Packages/PutPackage", *context);
  if (!who.ok()) return ToGrpc(who.status());
  const Place place(busy_);
  if (!place.status().ok()) return place.status();
  std::string id, bytes;
  PackagePiece piece;
  const auto read = [&] { return reader->Read(&piece); };
  while (InTime(context, busy_->patience, read)) {
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
  const absl::StatusOr<Requester> who = gate_->Admit("Packages/GetPackage", *context);
  if (!who.ok()) return ToGrpc(who.status());
  const Place place(busy_);
  if (!place.status().ok()) return place.status();
  const absl::StatusOr<std::string> bytes = store_->Get(request->id());
  if (!bytes.ok()) return ToGrpc(bytes.status());
  PackagePiece piece;
  for (size_t at = 0; at < bytes->size(); at += kPiece) {
    piece.set_data(bytes->substr(at, kPiece));
    const auto write = [&] { return writer->Write(piece); };
    if (!InTime(context, busy_->patience, write)) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

}  // namespace lockstep::coordinator
