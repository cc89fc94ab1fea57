// SPDX-License-Identifier: Apache-2.0
// A data plane between threads of one process, for tests: plain code over one mutex. It keeps the
// contract of communicator.h, not its speed; every call first exchanges what each rank brings, then
// each rank computes its own result from everyone's buffers, then all meet again. Thread-safety:
// FakeNetwork is thread-safe; FakeTransport as Transport.
#ifndef LOCKSTEP_COLLECTIVES_FAKE_FAKE_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_FAKE_FAKE_TRANSPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "collectives/communicator.h"
#include "collectives/flight_recorder.h"
#include "common/fd.h"

namespace lockstep {

class FakeGroup;

// What the transports of one test share.
class FakeNetwork {
 public:
  // The group of `generation`, made by whoever comes first.
  std::shared_ptr<FakeGroup> Group(int64_t generation, int world_size);
  // As if the process of `address` were killed: every generation with it ends with "rank r died".
  void Kill(const std::string& address);
  // A new name.
  std::string NextAddress();
  void AddMember(int64_t generation, const std::string& address, int rank);
  // Ends the generations up to `generation`, also those that begin later.
  void AbortUpTo(int64_t generation, const std::string& reason);

 private:
  absl::Mutex mu_;
  int addresses_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::shared_ptr<FakeGroup>> groups_ ABSL_GUARDED_BY(mu_);
  // Generation and rank of each address.
  std::multimap<std::string, std::pair<int64_t, int>> members_ ABSL_GUARDED_BY(mu_);
  int64_t aborted_ ABSL_GUARDED_BY(mu_) = -1;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

class FakeTransport : public Transport {
 public:
  // `network` outlives the transport; `arena_bytes` is the limit of Allocate.
  FakeTransport(FakeNetwork* network, size_t arena_bytes);
  ~FakeTransport() override;

  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override;
  VectorMemory& vectors() override { return vectors_; }
  // Filled with 0xff where it is not committed, so that a reader would notice. ReleasePages writes
  // it through a descriptor: as with the real one, the owner may have made the memory read-only.
  absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what) override;
  absl::Status CommitPages(void* data, size_t bytes, const std::string& what) override;
  void ReleasePages(void* data, size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupSpec& spec,
                                                        absl::Time deadline) override;
  // Aborts the generation for all of its ranks: there is one group.
  void AbortConnect(int64_t generation, const std::string& reason) override;
  std::string address() const override { return address_; }
  std::string key() const override { return "fake"; }
  const FlightRecorder& flight_recorder() const override { return recorder_; }

 private:
  FakeNetwork* const network_;
  const std::string address_;
  size_t left_;
  std::vector<void*> blocks_;
  struct Reserved {
    char* data = nullptr;
    size_t bytes = 0;
    UniqueFd memory;
  };
  std::vector<Reserved> reserved_;
  FlightRecorder recorder_;
  HostVectors vectors_{this};
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_FAKE_FAKE_TRANSPORT_H_
