// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/file_exchange.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/in_time.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kMostPiece = size_t{1} << 20;
constexpr size_t kTicketBytes = 32;

}  // namespace

std::string Transfers::Begin(std::shared_ptr<Handoff> handoff) {
  std::string ticket = RandomHex(kTicketBytes);
  absl::MutexLock lock(&mu_);
  transfers_[ticket] = std::move(handoff);
  return ticket;
}

void Transfers::End(const std::string& ticket) {
  absl::MutexLock lock(&mu_);
  transfers_.erase(ticket);
}

std::shared_ptr<Handoff> Transfers::Redeem(const std::string& ticket) {
  absl::MutexLock lock(&mu_);
  const auto found = transfers_.find(ticket);
  return found == transfers_.end() ? nullptr : std::exchange(found->second, nullptr);
}

grpc::Status FileExchange::FindFiles(grpc::ServerContext* context, const FindFilesRequest* request,
                                     FindFilesResponse* response) {
  const absl::StatusOr<Requester> who = gate_->Admit("Files/FindFiles", *context);
  if (!who.ok()) return ToGrpc(who.status());
  absl::StatusOr<FindFilesResponse> found = hub_->FindFiles(request->job_id(), *who);
  if (!found.ok()) return ToGrpc(found.status());
  *response = *std::move(found);
  return grpc::Status::OK;
}

grpc::Status FileExchange::Fetch(grpc::ServerContext* context, const FetchRequest* request,
                                 grpc::ServerWriter<FilePiece>* writer) {
  const absl::StatusOr<Requester> who = gate_->Admit("Files/Fetch", *context);
  if (!who.ok()) return ToGrpc(who.status());
  const std::unique_ptr<Places::Place> place = transfers_->Enter();
  if (place == nullptr) {
    return ToGrpc(absl::ResourceExhaustedError(absl::StrCat("the coordinator carries files for ",
                                                            Transfers::kMost,
                                                            " others now; try again in a while")));
  }
  const auto handoff = std::make_shared<Handoff>();
  const std::string ticket = transfers_->Begin(handoff);
  const absl::Cleanup end = [&] {
    handoff->Abandon();
    transfers_->End(ticket);
  };
  SendFiles wanted;
  wanted.set_ticket(ticket);
  wanted.set_logs(request->logs());
  wanted.set_records(request->records());
  wanted.set_model(request->model());
  wanted.set_all(request->all());
  const absl::Status asked =
      hub_->AskForFiles(request->job_id(), request->node_id(), std::move(wanted), *who);
  if (!asked.ok()) return ToGrpc(asked);
  while (true) {
    absl::StatusOr<FilePiece> piece =
        handoff->Take(transfers_->patience(), [context] { return context->IsCancelled(); });
    if (absl::IsDeadlineExceeded(piece.status())) {
      return ToGrpc(absl::UnavailableError(
          absl::StrCat("nothing came from node ", request->node_id(), " for ",
                       absl::FormatDuration(transfers_->patience()))));
    }
    if (!piece.ok()) return ToGrpc(piece.status());
    if (piece->error() != 0) {
      return grpc::Status(static_cast<grpc::StatusCode>(piece->error()), piece->error_text());
    }
    const auto write = [&] { return writer->Write(*piece); };
    if (!InTime(context, transfers_->patience(), write)) return grpc::Status::CANCELLED;
    if (piece->end()) return grpc::Status::OK;
    if (const absl::Status may = place->status(); !may.ok()) return ToGrpc(may);
  }
}

grpc::Status FileExchange::Send(grpc::ServerContext* context, grpc::ServerReader<FilePiece>* reader,
                                SendResponse*) {
  const absl::StatusOr<Requester> who = gate_->Admit("Files/Send", *context);
  if (!who.ok()) return ToGrpc(who.status());
  FilePiece piece;
  const auto read = [&] {
    return InTime(context, transfers_->patience(), [&] { return reader->Read(&piece); });
  };
  if (!read()) return grpc::Status::CANCELLED;
  const std::shared_ptr<Handoff> handoff = transfers_->Redeem(piece.ticket());
  if (handoff == nullptr) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                        "nobody waits for files with this ticket");
  }
  piece.clear_ticket();
  const auto gone = [context] { return context->IsCancelled(); };
  bool end = false;
  do {
    if (piece.data().size() > kMostPiece) break;
    end = piece.end() || piece.error() != 0;
    if (!handoff->Give(std::move(piece), gone)) {
      return grpc::Status(grpc::StatusCode::CANCELLED, "nobody takes the files any more");
    }
    piece.Clear();
  } while (!end && read());
  handoff->Close(absl::UnavailableError("the node's stream of files broke off; try again"));
  return grpc::Status::OK;
}

}  // namespace lockstep::coordinator
