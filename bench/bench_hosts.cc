// SPDX-License-Identifier: Apache-2.0
// The data plane between hosts: ranks in network namespaces reduce and exchange over TCP. One line
// of JSON for each operation and size, with the bytes that rank 0's namespace sent for a call.
// bench/hosts.py makes the namespaces and runs the others. tree_reduce_bf16 is a tree_reduce of
// rounded sums.
//   bench_hosts NAMESPACE=ADDRESS,... OPERATION,... BYTES,... SECONDS
// A namespace or address that is named twice has two ranks; "." is the one that this runs in.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/status.h"
#include "worker/commands/forked_ranks.h"

namespace lockstep::worker {
namespace {

constexpr int kRounds = 7;

absl::Time Soon() { return Clock::Real()->Now() + absl::Minutes(2); }

absl::Status EnterNamespace(const std::string& name) {
  if (name == ".") return absl::OkStatus();
  const std::string path = absl::StrCat("/run/netns/", name);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) return ErrnoStatus(errno, path);
  ::close(fd);
  return absl::OkStatus();
}

// Bytes that this process' network namespace has sent so far, but for those to itself.
int64_t SentBytes() {
  int64_t sum = 0;
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    int64_t sent = 0;
    if (fields.size() < 10 || fields[0] == "lo" || !absl::SimpleAtoi(fields[9], &sent)) continue;
    sum += sent;
  }
  return sum;
}

struct Buffers {
  float* vector = nullptr;
  float* result = nullptr;
};

absl::Status Call(Communicator& c, const std::string& operation, int64_t count,
                  const Buffers& buffers) {
  if (operation == "barrier") return c.Barrier(Soon());
  if (operation == "all_reduce") {
    return c.AllReduce(buffers.vector, count, DType::kFloat32, ReduceOp::kSum, ReduceOrder::kFixed,
                       Soon());
  }
  const NodeBuffer node{{c.rank(), c.rank() + 1}, buffers.vector};
  TreeReduceArgs args;
  args.nodes = absl::MakeConstSpan(&node, 1);
  args.count = count;
  args.result = buffers.result;
  args.rounded = operation == "tree_reduce_bf16" ? count : 0;
  return c.TreeReduce(args, Soon()).status();
}

// Seconds a call, of the slowest rank.
absl::StatusOr<double> Time(Communicator& c, const std::string& operation, int64_t count,
                            const Buffers& buffers, int64_t calls) {
  LS_RETURN_IF_ERROR(c.Barrier(Soon()));
  const absl::Time start = Clock::Real()->Now();
  for (int64_t i = 0; i < calls; ++i) LS_RETURN_IF_ERROR(Call(c, operation, count, buffers));
  double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start) / static_cast<double>(calls);
  LS_RETURN_IF_ERROR(
      c.AllReduce(&seconds, 1, DType::kFloat64, ReduceOp::kMax, ReduceOrder::kFixed, Soon()));
  return std::max(seconds, 1e-9);
}

absl::Status Measure(Communicator& c, const std::string& operation, int64_t bytes,
                     const Buffers& buffers, double wanted) {
  const int64_t count = std::max<int64_t>(1, bytes / 4);
  std::fill_n(buffers.vector, count, 0.0f);
  LS_ASSIGN_OR_RETURN(double seconds, Time(c, operation, count, buffers, 2));
  const int64_t calls =
      std::clamp<int64_t>(static_cast<int64_t>(wanted / kRounds / seconds), 1, 20000);
  std::vector<double> rounds;
  const int64_t sent = SentBytes();
  for (int round = 0; round < kRounds; ++round) {
    LS_ASSIGN_OR_RETURN(seconds, Time(c, operation, count, buffers, calls));
    rounds.push_back(seconds);
  }
  const int64_t of_call = (SentBytes() - sent) / (kRounds * calls);
  std::sort(rounds.begin(), rounds.end());
  if (c.rank() == 0) {
    std::printf(
        "{\"operation\":\"%s\",\"bytes\":%lld,\"ranks\":%d,\"median_us\":%.2f,\"min_us\":%.2f,"
        "\"max_us\":%.2f,\"sent_bytes\":%lld}\n",
        operation.c_str(), static_cast<long long>(bytes), c.world_size(), 1e6 * rounds[kRounds / 2],
        1e6 * rounds.front(), 1e6 * rounds.back(), static_cast<long long>(of_call));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& places, const std::vector<std::string>& operations,
                 const std::vector<int64_t>& sizes, double seconds) {
  ForkedRanks options;
  options.ranks = options.shards = static_cast<int>(places.size());
  for (const std::string& place : places) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(place, absl::MaxSplits('=', 1));
    options.nodes.push_back(absl::StrCat(parts.first, "=", parts.second));
    options.addresses.push_back(parts.second);
  }
  options.enter = [&](int rank) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(places[static_cast<size_t>(rank)], absl::MaxSplits('=', 1));
    return EnterNamespace(parts.first);
  };
  const auto most = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  options.arena_bytes = 2 * most + 8192;
  return RunForked(options, [&](Communicator& c, Transport& transport) -> absl::Status {
    Buffers buffers;
    LS_ASSIGN_OR_RETURN(void* const vector, transport.Allocate(most, "a vector"));
    LS_ASSIGN_OR_RETURN(void* const result, transport.Allocate(most, "the result"));
    buffers = {static_cast<float*>(vector), static_cast<float*>(result)};
    for (const std::string& operation : operations) {
      for (const int64_t bytes : sizes) {
        LS_RETURN_IF_ERROR(Measure(c, operation, bytes, buffers, seconds));
        if (operation == "barrier") break;
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep::worker

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "bench_hosts NAMESPACE=ADDRESS,... OPERATION,... BYTES,... SECONDS\n");
    return 2;
  }
  std::vector<int64_t> sizes;
  for (const auto text : absl::StrSplit(argv[3], ',')) {
    if (!absl::SimpleAtoi(text, &sizes.emplace_back())) return 2;
  }
  double seconds = 1;
  if (!absl::SimpleAtod(argv[4], &seconds)) return 2;
  const absl::Status status = lockstep::worker::Run(absl::StrSplit(argv[1], ','),
                                                    absl::StrSplit(argv[2], ','), sizes, seconds);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
