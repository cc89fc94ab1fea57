// SPDX-License-Identifier: Apache-2.0
// `launcher bench collectives`: what the data plane between ranks of this host does.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/tree_sum.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status.h"
#include "worker/commands/answers.h"
#include "worker/commands/forked_ranks.h"

namespace lockstep::worker {
namespace {

constexpr int kRounds = 5;
constexpr int kWarmUps = 3;
constexpr int64_t kFloat = sizeof(float);

absl::Time Soon() { return Clock::Real()->Now() + absl::Minutes(2); }

// One size of one operation.
struct Case {
  int64_t bytes = 0;  // as nccl-tests counts them: the whole vector, over all ranks where it is cut
  int64_t count = 0;  // fp32 elements of it
};

struct Measured {
  std::string operation;
  Case size;
  double median = 0, least = 0, most = 0;  // seconds a call, of the slowest rank
  double bus_factor = 0;
  int64_t wrong = -1;  // elements; -1: nothing to check

  double AlgorithmBandwidth() const {
    return median > 0 ? static_cast<double>(size.bytes) / median * 1e-9 : 0;
  }
};

// Whole numbers, so that sums are exact in any order.
float ValueOf(int source, int64_t i) { return static_cast<float>(source + 1 + i % 5); }
float SumOf(int sources, int64_t i) {
  return static_cast<float>(sources) *
         (static_cast<float>(sources + 1) / 2 + static_cast<float>(i % 5));
}

// One rank's buffers and operations. All memory comes from the arena once, for the largest size.
class RankBench {
 public:
  RankBench(const BenchCollectivesRequest& request, Communicator* communicator)
      : request_(request), communicator_(communicator), n_(communicator->world_size()) {}

  absl::Status Allocate(Transport* transport) {
    const auto bytes = static_cast<size_t>(request_.max_bytes()) + kPadding;
    const ShardRange held = DealShards(request_.shards(), n_, communicator_->rank());
    for (const ShardRange node : WholeNodes(request_.shards(), held)) {
      LS_ASSIGN_OR_RETURN(void* const memory, transport->Allocate(bytes, "a vector"));
      nodes_.push_back({node, static_cast<float*>(memory)});
    }
    LS_ASSIGN_OR_RETURN(void* const memory, transport->Allocate(bytes, "the result"));
    result_ = static_cast<float*>(memory);
    vector_ = const_cast<float*>(nodes_[0].data);
    private_.resize(static_cast<size_t>(n_));
    const bool local = IsAsked("local_sum") || IsAsked("memcpy");
    for (std::vector<float>& each : private_) {
      if (local) each.assign(bytes / kFloat / static_cast<size_t>(n_) + 64, 0.0f);
    }
    std::vector<ShardRange> leaves;
    for (int r = 0; r < n_; ++r) leaves.push_back({r, r + 1});
    LS_ASSIGN_OR_RETURN(TreeSum sum, TreeSum::Create(n_, leaves));
    local_sum_ = std::move(sum);
    return absl::OkStatus();
  }

  // Measures one operation at one size. All ranks call it alike.
  absl::StatusOr<Measured> Measure(const std::string& operation, const Case& size) {
    Measured result{operation, size};
    result.bus_factor = BusFactor(operation);
    LS_ASSIGN_OR_RETURN(result.wrong, Check(operation, size));
    Fill(0, size.count);
    LS_ASSIGN_OR_RETURN(double seconds, Time(operation, size, kWarmUps));
    const double wanted = request_.seconds() / kRounds;
    const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(wanted / seconds), 1, 100000);
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      LS_ASSIGN_OR_RETURN(seconds, Time(operation, size, calls));
      rounds.push_back(seconds);
    }
    std::sort(rounds.begin(), rounds.end());
    result.median = rounds[kRounds / 2];
    result.least = rounds.front();
    result.most = rounds.back();
    return result;
  }

  // Returns what every rank's arena must hold.
  static size_t ArenaBytes(const BenchCollectivesRequest& request) {
    size_t most = 0;
    for (int r = 0; r < request.ranks(); ++r) {
      const ShardRange held = DealShards(request.shards(), request.ranks(), r);
      most = std::max(most, WholeNodes(request.shards(), held).size());
    }
    return (most + 1) * (static_cast<size_t>(request.max_bytes()) + 2 * kPadding);
  }

 private:
  static constexpr size_t kPadding = 4096;

  bool IsAsked(const std::string& operation) const {
    const auto& all = request_.operations();
    return std::find(all.begin(), all.end(), operation) != all.end();
  }

  // As nccl-tests' PERFORMANCE.md defines bus bandwidth; tree_reduce leaves the reduced slices with
  // their owners, as a reduce-scatter does.
  double BusFactor(const std::string& operation) const {
    const double n = n_;
    if (operation == "all_reduce") return 2 * (n - 1) / n;
    if (operation == "tree_reduce" || operation == "reduce_scatter" || operation == "all_gather") {
      return (n - 1) / n;
    }
    return 1;
  }

  // Elements [0, count) of all inputs; with `exact` what ValueOf says, else zero.
  void Fill(bool exact, int64_t count) {
    for (const NodeBuffer& node : nodes_) {
      auto* data = const_cast<float*>(node.data);
      for (int64_t i = 0; i < count; ++i) {
        float value = 0;
        for (int s = node.node.begin; exact && s < node.node.end; ++s) value += ValueOf(s, i);
        data[i] = value;
      }
    }
    std::memset(result_, 0, static_cast<size_t>(count) * kFloat);
  }

  // A call of `operation`, ready to be repeated. It reports what it cannot do.
  std::function<absl::Status()> CallOf(const std::string& operation, const Case& size) {
    Communicator* const c = communicator_;
    const int64_t count = size.count, part = size.count / n_;
    if (operation == "tree_reduce") return [=, this] { return TreeReduce(count); };
    if (operation == "all_reduce") {
      return [=, this] {
        return c->AllReduce(vector_, count, DType::kFloat32, ReduceOp::kSum, ReduceOrder::kFixed,
                            Soon());
      };
    }
    if (operation == "reduce_scatter") {
      return [=, this] {
        return c->ReduceScatter(vector_, result_, part, DType::kFloat32, ReduceOp::kSum, Soon());
      };
    }
    if (operation == "all_gather") {
      return [=, this] { return c->AllGather(vector_, result_, part, DType::kFloat32, Soon()); };
    }
    if (operation == "broadcast") {
      return [=, this] { return c->Broadcast(vector_, count, DType::kFloat32, 0, Soon()); };
    }
    if (operation == "sendrecv") return [=, this] { return SendRecv(count); };
    if (operation == "barrier") return [=] { return c->Barrier(Soon()); };
    if (operation == "local_sum") return [=, this] { return LocalSum(count); };
    return [=, this] {  // memcpy: as many bytes as the whole vector has, by all ranks together
      std::memcpy(private_[0].data(), private_[static_cast<size_t>(n_ - 1)].data(),
                  static_cast<size_t>(part) * kFloat);
      return absl::OkStatus();
    };
  }

  absl::Status TreeReduce(int64_t count) {
    TreeReduceArgs args;
    args.nodes = nodes_;
    args.count = count;
    args.result = result_;
    return communicator_->TreeReduce(args, Soon()).status();
  }

  // Pairs exchange; with an odd number of ranks the last one only looks on.
  absl::Status SendRecv(int64_t count) {
    const int rank = communicator_->rank(), peer = rank ^ 1;
    if (peer >= n_) return absl::OkStatus();
    const auto send = [&] {
      return communicator_->Send(vector_, count, DType::kFloat32, peer, Soon());
    };
    if (rank < peer) LS_RETURN_IF_ERROR(send());
    LS_RETURN_IF_ERROR(communicator_->Recv(result_, count, DType::kFloat32, peer, Soon()));
    return rank < peer ? absl::OkStatus() : send();
  }

  // The additions of a tree_reduce on memory that nobody else uses: the limit of the machine.
  absl::Status LocalSum(int64_t count) {
    std::vector<const float*> inputs;
    for (const std::vector<float>& each : private_) inputs.push_back(each.data());
    local_sum_->Run(inputs, result_, SliceOf(count, n_, communicator_->rank()).size());
    return absl::OkStatus();
  }

  // Seconds a call in a row of `calls`, of the slowest rank.
  absl::StatusOr<double> Time(const std::string& operation, const Case& size, int64_t calls) {
    const std::function<absl::Status()> call = CallOf(operation, size);
    LS_RETURN_IF_ERROR(communicator_->Barrier(Soon()));
    const absl::Time start = Clock::Real()->Now();
    for (int64_t i = 0; i < calls; ++i) LS_RETURN_IF_ERROR(call());
    double seconds =
        absl::ToDoubleSeconds(Clock::Real()->Now() - start) / static_cast<double>(calls);
    LS_RETURN_IF_ERROR(communicator_->AllReduce(&seconds, 1, DType::kFloat64, ReduceOp::kMax,
                                                ReduceOrder::kFixed, Soon()));
    return std::max(seconds, 1e-9);
  }

  // Runs the operation once on known values; how many elements are wrong, over all ranks.
  absl::StatusOr<int64_t> Check(const std::string& operation, const Case& size) {
    if (operation == "barrier" || operation == "local_sum" || operation == "memcpy") return -1;
    Fill(true, size.count);
    LS_RETURN_IF_ERROR(communicator_->Barrier(Soon()));
    LS_RETURN_IF_ERROR(CallOf(operation, size)());
    int64_t wrong = CountWrong(operation, size);
    LS_RETURN_IF_ERROR(communicator_->AllReduce(&wrong, 1, DType::kInt64, ReduceOp::kSum,
                                                ReduceOrder::kFixed, Soon()));
    return wrong;
  }

  // Returns what a rank's whole first node holds at `i`, when it was filled.
  float OwnValue(int rank, int64_t i) const {
    const ShardRange node =
        WholeNodes(request_.shards(), DealShards(request_.shards(), n_, rank))[0];
    float value = 0;
    for (int s = node.begin; s < node.end; ++s) value += ValueOf(s, i);
    return value;
  }

  int64_t CountWrong(const std::string& operation, const Case& size) const {
    const int rank = communicator_->rank();
    const int64_t part = size.count / n_;
    const ElementRange slice = SliceOf(size.count, n_, rank);
    const auto sum_of_ranks = [&](int64_t i) {
      float sum = 0;
      for (int r = 0; r < n_; ++r) sum += OwnValue(r, i);
      return sum;
    };
    int64_t wrong = 0;
    const auto expect = [&](const float* got, int64_t elements, const auto& expected) {
      for (int64_t i = 0; i < elements; ++i) wrong += got[i] != expected(i) ? 1 : 0;
    };
    if (operation == "tree_reduce") {
      expect(result_ + slice.begin, slice.size(),
             [&](int64_t i) { return SumOf(request_.shards(), slice.begin + i); });
    } else if (operation == "all_reduce") {
      expect(vector_, size.count, sum_of_ranks);
    } else if (operation == "reduce_scatter") {
      expect(result_, part, [&](int64_t i) { return sum_of_ranks(rank * part + i); });
    } else if (operation == "all_gather") {
      expect(result_, part * n_,
             [&](int64_t i) { return OwnValue(static_cast<int>(i / part), i % part); });
    } else if (operation == "broadcast") {
      expect(vector_, size.count, [&](int64_t i) { return OwnValue(0, i); });
    } else if (operation == "sendrecv" && (rank ^ 1) < n_) {
      expect(result_, size.count, [&](int64_t i) { return OwnValue(rank ^ 1, i); });
    }
    return wrong;
  }

  const BenchCollectivesRequest& request_;
  Communicator* const communicator_;
  const int n_;
  std::vector<NodeBuffer> nodes_;
  float* vector_ = nullptr;  // the first node
  float* result_ = nullptr;
  std::vector<std::vector<float>> private_;
  std::optional<TreeSum> local_sum_;
};

// Sizes whose elements all ranks can share evenly: multiples of a cache line of each rank from
// there on, single elements below.
std::vector<Case> CasesOf(const BenchCollectivesRequest& request, const std::string& operation) {
  if (operation == "barrier") return {{0, 0}};
  std::vector<Case> cases;
  const bool cut = operation == "reduce_scatter" || operation == "all_gather";
  const double most = static_cast<double>(request.max_bytes());
  for (double bytes = static_cast<double>(request.min_bytes()); bytes <= most;
       bytes *= request.factor()) {
    int64_t count = std::max<int64_t>(1, static_cast<int64_t>(bytes) / kFloat);
    if (cut) count = std::max<int64_t>(count / request.ranks(), 1) * request.ranks();
    cases.push_back({count * kFloat, count});
  }
  return cases;
}

void PrintHead(const BenchCollectivesRequest& request) {
  std::printf(
      "# %d ranks of this host, shared memory, %d shards; time of the slowest rank, median of %d "
      "rounds\n",
      request.ranks(), request.shards(), kRounds);
  std::printf("%-15s %11s %11s %-6s %-6s %11s %11s %11s %9s %9s %7s\n", "OPERATION", "SIZE(B)",
              "COUNT", "TYPE", "REDOP", "TIME(us)", "LEAST", "MOST", "ALGBW", "BUSBW", "#WRONG");
}

// Returns whether stdout took it; else errno says why.
bool PrintRow(const Measured& row) {
  const bool sums = absl::StrContains(row.operation, "reduce") || row.operation == "local_sum";
  const int printed = std::printf(
      "%-15s %11lld %11lld %-6s %-6s %11.2f %11.2f %11.2f %9.3f %9.3f %7s\n", row.operation.c_str(),
      static_cast<long long>(row.size.bytes), static_cast<long long>(row.size.count), "float",
      sums ? "sum" : "none", row.median * 1e6, row.least * 1e6, row.most * 1e6,
      row.AlgorithmBandwidth(), row.AlgorithmBandwidth() * row.bus_factor,
      row.wrong < 0 ? "-" : absl::StrCat(row.wrong).c_str());
  return printed >= 0 && std::fflush(stdout) == 0;
}

std::string RowJson(const Measured& row) {
  return JsonObject()
      .Add("operation", row.operation)
      .Add("bytes", row.size.bytes)
      .Add("count", row.size.count)
      .Add("microseconds", row.median * 1e6)
      .Add("least_microseconds", row.least * 1e6)
      .Add("most_microseconds", row.most * 1e6)
      .Add("algorithm_gb_per_second", row.AlgorithmBandwidth())
      .Add("bus_gb_per_second", row.AlgorithmBandwidth() * row.bus_factor)
      .Raw("wrong", row.wrong < 0 ? "null" : absl::StrCat(row.wrong))
      .Done();
}

absl::Status RunRankBench(const BenchCollectivesRequest& request, bool json, Communicator& c,
                          Transport& transport) {
  RankBench bench(request, &c);
  LS_RETURN_IF_ERROR(bench.Allocate(&transport));
  const bool speaks = c.rank() == 0;
  JsonArray rows;
  int64_t wrong = 0;
  if (speaks && !json) PrintHead(request);
  for (const std::string& operation : request.operations()) {
    for (const Case& size : CasesOf(request, operation)) {
      LS_ASSIGN_OR_RETURN(const Measured row, bench.Measure(operation, size));
      wrong += std::max<int64_t>(row.wrong, 0);
      if (speaks && !json && !PrintRow(row)) return ResultNotWritten(errno);
      rows.Raw(RowJson(row));
    }
  }
  if (speaks && json) {
    const std::string text = JsonObject()
                                 .Add("schema", 1)
                                 .Add("ok", wrong == 0)
                                 .Add("ranks", request.ranks())
                                 .Add("shards", request.shards())
                                 .Add("transport", "shm")
                                 .Raw("rows", rows.Done())
                                 .Done();
    // What does not fit the buffer is written here, and a flush tells nothing of it.
    if (std::printf("%s\n", text.c_str()) < 0) return ResultNotWritten(errno);
  }
  if (speaks && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    return ResultNotWritten(errno);
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(wrong, " elements are wrong: see the column #WRONG"));
}

}  // namespace

absl::Status AnswerBenchCollectives(const BenchCollectivesRequest& request, bool json) {
  ForkedRanks forked;
  forked.ranks = request.ranks();
  forked.shards = request.shards();
  forked.arena_bytes = RankBench::ArenaBytes(request);
  std::fflush(stdout);
  return RunForked(forked, [&](Communicator& communicator, Transport& transport) {
    return RunRankBench(request, json, communicator, transport);
  });
}

}  // namespace lockstep::worker
