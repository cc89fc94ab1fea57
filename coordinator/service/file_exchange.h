// SPDX-License-Identifier: Apache-2.0
// The service Files (proto/files.proto): joins a user's stream with the one that a node's agent
// opens for it. A transfer holds two of gRPC's threads and one piece; a few at a time are let in,
// so that what the coordinator is there for does not wait (places.h), and each piece has to go on
// in time, so that who stands still keeps nobody out. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_FILE_EXCHANGE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_FILE_EXCHANGE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/handoff.h"
#include "coordinator/service/hub.h"
#include "coordinator/service/places.h"
#include "proto/files.grpc.pb.h"

namespace lockstep::coordinator {

// The transfers that are under way, by their tickets.
class Transfers {
 public:
  // `patience`: how long an agent may take to open its stream, and both sides for each piece.
  // `share` and `clock` as in Places.
  Transfers(absl::Duration patience, absl::Duration share, Clock* clock)
      : patience_(patience), places_(kMost, share, clock) {}
  absl::Duration patience() const { return patience_; }

  // Null: so many are under way that the coordinator carries no more.
  std::unique_ptr<Places::Place> Enter() { return places_.Take(); }
  // A transfer under a new ticket, which is returned.
  std::string Begin(std::shared_ptr<Handoff> handoff);
  void End(const std::string& ticket);
  // The transfer of a ticket, which nobody else gets any more; null: there is none.
  std::shared_ptr<Handoff> Redeem(const std::string& ticket);

  // At a time: each takes two of the threads that gRPC may have.
  static constexpr size_t kMost = 2;

 private:
  const absl::Duration patience_;
  Places places_;
  absl::Mutex mu_;
  // Null: its ticket was shown.
  std::map<std::string, std::shared_ptr<Handoff>> transfers_ ABSL_GUARDED_BY(mu_);
};

// The calls.
class FileExchange : public Files::Service {
 public:
  // All of them outlive this.
  FileExchange(Hub* hub, Transfers* transfers, const Gate* gate)
      : hub_(hub), transfers_(transfers), gate_(gate) {}

  grpc::Status FindFiles(grpc::ServerContext* context, const FindFilesRequest* request,
                         FindFilesResponse* response) override;
  grpc::Status Fetch(grpc::ServerContext* context, const FetchRequest* request,
                     grpc::ServerWriter<FilePiece>* writer) override;
  grpc::Status Send(grpc::ServerContext* context, grpc::ServerReader<FilePiece>* reader,
                    SendResponse* response) override;

 private:
  Hub* const hub_;
  Transfers* const transfers_;
  const Gate* const gate_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_FILE_EXCHANGE_H_
