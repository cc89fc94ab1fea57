// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/packages.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/in_time.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/route.h"
#include "proto/package.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// Small, as the coordinator wants each in time: over a thin line, too.
constexpr size_t kPiece = size_t{64} << 10;

// `begin` begins a call, which blocks until somebody is reached. Returns whether somebody was.
bool Reach(grpc::ClientContext* context, absl::Duration silence, absl::FunctionRef<void()> begin) {
  std::atomic<bool> ended{false};
  InTime(
      [&] {
        ended = true;
        context->TryCancel();
      },
      silence,
      [&] {
        begin();
        return true;
      });
  return !ended;
}

class GrpcPackagesClient : public PackagesClient {
 public:
  explicit GrpcPackagesClient(const ClientOptions& options) : options_(options), route_(options) {}

  absl::StatusOr<bool> Put(const std::string& id, const std::string& bytes,
                           absl::Duration silence) override {
    HasPackageRequest request;
    request.set_id(id);
    HasPackageResponse response;
    LS_RETURN_IF_ERROR(
        Call(silence, [&](Packages::Stub* stub, grpc::ClientContext* context, bool*) {
          SetDeadline(silence, context);
          return stub->HasPackage(context, request, &response);
        }));
    if (response.has()) return false;
    LS_RETURN_IF_ERROR(
        Call(silence, [&](Packages::Stub* stub, grpc::ClientContext* context, bool* reached) {
          PutPackageResponse done;
          std::unique_ptr<grpc::ClientWriter<PackagePiece>> writer;
          *reached = Reach(context, silence, [&] { writer = stub->PutPackage(context, &done); });
          PackagePiece piece;
          piece.set_id(id);
          for (size_t at = 0; at < bytes.size() || at == 0; at += kPiece) {
            piece.set_data(bytes.substr(at, kPiece));
            const auto write = [&] { return writer->Write(piece); };
            if (!InTime(context, silence, write)) break;  // Finish says why
            piece.clear_id();
          }
          grpc::Status status;
          InTime(context, silence, [&] {
            writer->WritesDone();
            status = writer->Finish();
            return true;
          });
          return status;
        }));
    return true;
  }

  absl::StatusOr<std::string> Get(const std::string& id, absl::Duration silence) override {
    GetPackageRequest request;
    request.set_id(id);
    std::string bytes;
    LS_RETURN_IF_ERROR(
        Call(silence, [&](Packages::Stub* stub, grpc::ClientContext* context, bool* reached) {
          std::unique_ptr<grpc::ClientReader<PackagePiece>> reader;
          *reached = Reach(context, silence, [&] { reader = stub->GetPackage(context, request); });
          PackagePiece piece;
          const auto read = [&] { return reader->Read(&piece); };
          while (static_cast<int64_t>(bytes.size()) <= kMostPackedBytes &&
                 InTime(context, silence, read)) {
            bytes += piece.data();
          }
          if (static_cast<int64_t>(bytes.size()) > kMostPackedBytes) context->TryCancel();
          return reader->Finish();
        }));
    if (PackageId(bytes) == id) return bytes;
    return absl::DataLossError(absl::StrCat("what came for the package ", id, " is damaged"));
  }

  void Stop() override {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
  }

 private:
  // `search`: for how long it is looked for who leads. The body bounds the call.
  template <typename Body>
  absl::Status Call(absl::Duration search, Body body) {
    const auto stub = Packages::NewStub(route_.ToLeader(search));
    grpc::ClientContext context;
    ShowToken(options_, &context);
    context.set_wait_for_ready(true);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return absl::CancelledError("stopped");
      calls_.insert(&context);
    }
    const absl::Cleanup over = [&] {
      absl::MutexLock lock(&mu_);
      calls_.erase(&context);
    };
    bool reached = false;
    const grpc::Status status = body(stub.get(), &context, &reached);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return absl::UnimplementedError(
          "this coordinator is older and takes no job with a workdir of its own");
    }
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!NobodyServed(status) && !late) return FromGrpc(status);
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
    if (reached && status.error_code() == grpc::StatusCode::CANCELLED) {
      return absl::DeadlineExceededError(
          absl::StrCat("the transfer of a workdir with the coordinator at ", options_.address,
                       " has ended: it was stopped, or nothing moved for long; try again"));
    }
    return absl::UnavailableError(
        absl::StrCat("no coordinator answers at ", options_.address, ": ", status.error_message()));
  }

  const ClientOptions options_;
  Route route_;
  absl::Mutex mu_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<PackagesClient> PackagesClient::Create(const ClientOptions& options) {
  return std::make_unique<GrpcPackagesClient>(options);
}

}  // namespace lockstep::coordinator
