// SPDX-License-Identifier: Apache-2.0
// How files of a run come through a coordinator (proto/files.proto): the side of who wants them,
// and that of the agent that sends them. No gRPC type is visible here. Thread-safety: thread-safe;
// a FileStream is one thread's, but for Cancel.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_FILES_H_
#define LOCKSTEP_COORDINATOR_CLIENT_FILES_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"
#include "proto/files.pb.h"

namespace lockstep::coordinator {

class FilesClient {
 public:
  // Does not block. Never null.
  static std::unique_ptr<FilesClient> Create(const ClientOptions& options);
  virtual ~FilesClient() = default;

  // Blocks. Errors: NotFound, Unavailable (nobody answers within `timeout`).
  virtual absl::StatusOr<FindFilesResponse> FindFiles(const FindFilesRequest& request,
                                                      absl::Duration timeout) = 0;
  // Calls `on_piece` for each piece until the node has sent all; blocks. Errors: the first of
  // `on_piece`'s; Unavailable (the node is away, or broke off); NotFound; ResourceExhausted.
  virtual absl::Status Fetch(const FetchRequest& request,
                             std::function<absl::Status(const FilePiece&)> on_piece) = 0;
  // Ends a Fetch that runs on another thread; does not wait for it.
  virtual void Stop() = 0;
};

// The pieces that an agent sends, each a copy of which waits until the network took it.
class FileStream {
 public:
  // Does not block: the connection is made by the first Write. Never null.
  static std::unique_ptr<FileStream> Open(const ClientOptions& options);
  virtual ~FileStream() = default;
  // Blocks until the piece is on its way. False: nobody takes any more.
  virtual bool Write(const FilePiece& piece) = 0;
  // Nothing more comes; blocks until the coordinator knows. Errors: why it took no more.
  virtual absl::Status Finish() = 0;
  // Ends a Write or Finish that blocks on another thread.
  virtual void Cancel() = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_FILES_H_
