// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/files.h"

#include <grpcpp/client_context.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/route.h"
#include "proto/files.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

class GrpcFilesClient : public FilesClient {
 public:
  explicit GrpcFilesClient(const ClientOptions& options) : options_(options), route_(options) {}

  absl::StatusOr<FindFilesResponse> FindFiles(const FindFilesRequest& request,
                                              absl::Duration timeout) override {
    grpc::ClientContext context;
    ShowToken(options_, &context);
    context.set_wait_for_ready(true);
    SetDeadline(timeout, &context);
    FindFilesResponse response;
    const auto stub = Files::NewStub(route_.ToLeader(timeout));
    const grpc::Status status = stub->FindFiles(&context, request, &response);
    if (status.ok()) return response;
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return absl::UnimplementedError("this coordinator is older and carries no files");
    }
    if (NobodyServed(status) || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::UnavailableError(absl::StrCat("no coordinator answers at ", options_.address,
                                                 " within ", absl::FormatDuration(timeout)));
    }
    return FromGrpc(status);
  }

  absl::Status Fetch(const FetchRequest& request,
                     std::function<absl::Status(const FilePiece&)> on_piece) override {
    grpc::ClientContext context;
    ShowToken(options_, &context);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return absl::CancelledError("stopped");
      fetching_ = &context;
    }
    const auto stub = Files::NewStub(route_.ToLeader());
    const auto reader = stub->Fetch(&context, request);
    FilePiece piece;
    absl::Status taken;
    while (taken.ok() && reader->Read(&piece)) taken = on_piece(piece);
    if (!taken.ok()) context.TryCancel();
    const grpc::Status status = reader->Finish();
    absl::MutexLock lock(&mu_);
    fetching_ = nullptr;
    if (stopped_) return absl::CancelledError("stopped");
    if (!taken.ok()) return taken;
    if (status.error_code() == grpc::StatusCode::CANCELLED) {
      return absl::UnavailableError(
          "the coordinator has ended the transfer: it was stopped, or what it sent was not taken "
          "for long; try again");
    }
    return FromGrpc(status);
  }

  void Stop() override {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (fetching_ != nullptr) fetching_->TryCancel();
  }

 private:
  const ClientOptions options_;
  Route route_;
  absl::Mutex mu_;
  grpc::ClientContext* fetching_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

class GrpcFileStream : public FileStream {
 public:
  explicit GrpcFileStream(const ClientOptions& options)
      : stub_(Files::NewStub(Route(options).ToLeader())) {
    ShowToken(options, &context_);
    writer_ = stub_->Send(&context_, &response_);
  }

  bool Write(const FilePiece& piece) override { return writer_->Write(piece); }
  absl::Status Finish() override {
    writer_->WritesDone();
    return FromGrpc(writer_->Finish());
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  const std::unique_ptr<Files::Stub> stub_;
  grpc::ClientContext context_;
  SendResponse response_;
  std::unique_ptr<grpc::ClientWriter<FilePiece>> writer_;
};

}  // namespace

std::unique_ptr<FilesClient> FilesClient::Create(const ClientOptions& options) {
  return std::make_unique<GrpcFilesClient>(options);
}

std::unique_ptr<FileStream> FileStream::Open(const ClientOptions& options) {
  return std::make_unique<GrpcFileStream>(options);
}

}  // namespace lockstep::coordinator
