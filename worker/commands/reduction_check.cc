// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/reduction_check.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_transport.h"
#include "collectives/shards.h"
#include "common/clock.h"
#include "common/status.h"
#include "worker/commands/forked_ranks.h"
#include "worker/setup/cuda_queue.h"
#include "worker/setup/nccl_settings.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kFloats = 1 << 20;
constexpr int kRounds = 5;
constexpr int kHostRanks = 2;
// Room for alignment of a vector in the arena.
constexpr size_t kPadding = 4096;

absl::Time Soon() { return Clock::Real()->Now() + absl::Seconds(30); }

// Whole numbers, so that sums are exact in any order.
float ValueOf(int rank, int64_t i) { return static_cast<float>(rank + 1 + i % 5); }
float SumOf(int ranks, int64_t i) {
  return static_cast<float>(ranks) *
         (static_cast<float>(ranks + 1) / 2 + static_cast<float>(i % 5));
}

absl::Status CheckSums(absl::Span<const Slice> slices, int ranks, VectorMemory* vectors) {
  int64_t next = 0;
  for (const Slice& slice : slices) {
    std::vector<float> sums(static_cast<size_t>(slice.end - slice.begin));
    LS_RETURN_IF_ERROR(vectors->Read(sums.data(), slice.data, static_cast<int64_t>(sums.size())));
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t at = slice.begin + static_cast<int64_t>(i);
      if (sums[i] == SumOf(ranks, at)) continue;
      return absl::InternalError(absl::StrFormat(
          "element %d is %g instead of %g: do not train on it", at, sums[i], SumOf(ranks, at)));
    }
    next = slice.end;
  }
  if (next == kFloats) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%d of %d elements were reduced", next, kFloats));
}

// One rank's part. `seconds` gets the shortest of its rounds.
absl::Status Reduce(Communicator& communicator, Transport& transport, double* seconds) {
  VectorMemory& vectors = transport.vectors();
  const int ranks = communicator.world_size(), rank = communicator.rank();
  LS_ASSIGN_OR_RETURN(float* const vector, vectors.Allocate(kFloats, "a vector"));
  LS_ASSIGN_OR_RETURN(float* const result, vectors.Allocate(kFloats, "the result"));
  std::vector<float> values(static_cast<size_t>(kFloats));
  for (int64_t i = 0; i < kFloats; ++i) values[static_cast<size_t>(i)] = ValueOf(rank, i);
  LS_RETURN_IF_ERROR(vectors.Write(vector, values.data(), kFloats));
  const NodeBuffer node{DealShards(ranks, ranks, rank), vector};
  TreeReduceArgs args;
  args.nodes = absl::MakeConstSpan(&node, 1);
  args.count = kFloats;
  args.result = result;
  for (int round = 0; round <= kRounds; ++round) {
    LS_RETURN_IF_ERROR(communicator.Barrier(Soon()));
    const absl::Time start = Clock::Real()->Now();
    LS_ASSIGN_OR_RETURN(const absl::Span<const Slice> slices,
                        communicator.TreeReduce(args, Soon()));
    const double took = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
    if (round == 0) {  // the first one also warms up
      LS_RETURN_IF_ERROR(CheckSums(slices, ranks, &vectors));
    } else if (round == 1 || took < *seconds) {
      *seconds = took;
    }
  }
  return absl::OkStatus();
}

// A number that forked ranks can write.
class SharedNumber {
 public:
  SharedNumber()
      : memory_(::mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) {}
  ~SharedNumber() {
    if (good()) ::munmap(memory_, sizeof(double));
  }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  bool good() const { return memory_ != MAP_FAILED; }
  double* get() const { return static_cast<double*>(memory_); }

 private:
  void* const memory_;
};

absl::StatusOr<std::string> Check(ForkedRanks options) {
  const SharedNumber seconds;
  if (!seconds.good()) return ErrnoStatus(errno, "cannot share memory with the ranks");
  options.shards = options.ranks;
  options.arena_bytes = 2 * (static_cast<size_t>(kFloats) * sizeof(float) + 2 * kPadding);
  LS_RETURN_IF_ERROR(RunForked(options, [&](Communicator& communicator, Transport& transport) {
    double own = 0;
    absl::Status status = Reduce(communicator, transport, &own);
    if (communicator.rank() == 0) *seconds.get() = own;
    return status;
  }));
  const double bytes = static_cast<double>(kFloats) * sizeof(float);
  return absl::StrFormat("%d ranks, %.1f MiB: right, %.1f GB/s", options.ranks, bytes / (1 << 20),
                         bytes / std::max(*seconds.get(), 1e-9) / 1e9);
}

absl::StatusOr<std::unique_ptr<Transport>> OpenNcclTransport(const std::string& uuid, bool shared,
                                                             std::unique_ptr<Transport> control) {
  ::setenv("CUDA_VISIBLE_DEVICES", uuid.c_str(), 1);
  SetNcclEnvironment(Nccl(), shared);
  NcclTransport::Options options;
  LS_ASSIGN_OR_RETURN(options.library, LoadNccl());
  LS_ASSIGN_OR_RETURN(options.queue, CudaQueue::Open(uuid));
  options.control = std::move(control);
  options.may_share_gpu = shared;
  return std::make_unique<NcclTransport>(std::move(options));
}

}  // namespace

absl::StatusOr<std::string> CheckHostReduction() {
  ForkedRanks options;
  options.ranks = kHostRanks;
  return Check(std::move(options));
}

absl::StatusOr<std::string> CheckNcclReduction(const std::vector<std::string>& uuids) {
  ForkedRanks options;
  options.ranks = static_cast<int>(uuids.size());
  const bool shared = std::set<std::string>(uuids.begin(), uuids.end()).size() < uuids.size();
  options.over = [&uuids, shared](int rank, std::unique_ptr<Transport> host) {
    return OpenNcclTransport(uuids[static_cast<size_t>(rank)], shared, std::move(host));
  };
  return Check(std::move(options));
}

}  // namespace lockstep::worker
