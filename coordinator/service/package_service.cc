// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/package_service.h"

#include <memory>
#include <string>

#include "coordinator/client/grpc_status.h"
#include "coordinator/client/in_time.h"

namespace lockstep::coordinator {
namespace {

// Small, as each has to be taken in time: over a thin line, too.
constexpr size_t kPiece = size_t{64} << 10;

grpc::Status NoPlace() {
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                      "the coordinator carries other jobs' workdirs now; try again in a while");
}

}  // namespace

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
  const std::unique_ptr<Places::Place> place = busy_->places.Take();
  if (place == nullptr) return NoPlace();
  std::string id, bytes;
  PackagePiece piece;
  const auto read = [&] { return reader->Read(&piece); };
  while (InTime(context, busy_->patience, read)) {
    if (id.empty()) id = piece.id();
    if (static_cast<int64_t>(bytes.size() + piece.data().size()) > kMostPackedBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a package has too many bytes");
    }
    bytes += piece.data();
    if (const absl::Status may = place->status(); !may.ok()) return ToGrpc(may);
  }
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  return ToGrpc(store_->Put(id, bytes));
}

grpc::Status PackageService::GetPackage(grpc::ServerContext* context,
                                        const GetPackageRequest* request,
                                        grpc::ServerWriter<PackagePiece>* writer) {
  const absl::StatusOr<Requester> who = gate_->Admit("Packages/GetPackage", *context);
  if (!who.ok()) return ToGrpc(who.status());
  const std::unique_ptr<Places::Place> place = busy_->places.Take();
  if (place == nullptr) return NoPlace();
  const absl::StatusOr<std::string> bytes = store_->Get(request->id());
  if (!bytes.ok()) return ToGrpc(bytes.status());
  PackagePiece piece;
  for (size_t at = 0; at < bytes->size(); at += kPiece) {
    piece.set_data(bytes->substr(at, kPiece));
    const auto write = [&] { return writer->Write(piece); };
    if (!InTime(context, busy_->patience, write)) return grpc::Status::CANCELLED;
    if (const absl::Status may = place->status(); !may.ok()) return ToGrpc(may);
  }
  return grpc::Status::OK;
}

}  // namespace lockstep::coordinator
