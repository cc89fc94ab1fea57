// SPDX-License-Identifier: Apache-2.0
// What a pass over the queue takes of a CPU:
//   bench_queue [JOBS] [NODES] [SHAPES]
// NODES (1,000) of 8 slots and 8 GPUs in racks of 32 are full of jobs with time limits; JOBS
// (10,000) of SHAPES (200) kinds wait. One line of JSON: the pass that finds nobody room, the one
// after which a tenth of the running jobs have ended, and the best and worst of ten such.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/queue_pass.h"

namespace lockstep::coordinator {
namespace {

double CpuMilliseconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

class Bench {
 public:
  Bench(int jobs, int nodes, int shapes) {
    queue_.now = absl::UnixEpoch();
    for (int i = 0; i < nodes; ++i) {
      NodeFacts node;
      node.id = node.host = absl::StrCat("host", i);
      node.slots = node.gpus = 8;
      node.rack = 1 + i / 32;
      queue_.cluster.nodes.push_back(node);
    }
    queue_.cluster.free = Whole(queue_.cluster);
    for (int i = 0; i < jobs; ++i) Wait(i, shapes);
    for (int i = 0; i < nodes; ++i) Run(i);
  }

  void Measure() {
    const double full = Pass();
    std::vector<double> times;
    for (int i = 0; i < 10; ++i) {
      EndSome();
      times.push_back(Pass());
    }
    std::sort(times.begin(), times.end());
    std::printf(
        "{\"jobs\":%zu,\"nodes\":%zu,\"full_ms\":%.2f,\"least_ms\":%.2f,\"median_ms\":%.2f,"
        "\"most_ms\":%.2f,\"started\":%d}\n",
        queue_.waiting.size(), queue_.cluster.nodes.size(), full, times.front(),
        times[times.size() / 2], times.back(), started_);
  }

 private:
  int Draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  Ask& MakeAsk(int nodes, int per_node, absl::Duration limit) {
    Ask& ask = asks_.emplace_back();
    ask.counts.assign(static_cast<size_t>(nodes), per_node);
    ask.wanted = ask.least = nodes * per_node;
    ask.per_node = per_node;
    ask.limit = limit;
    ask.user = absl::StrCat("user", Draw(0, 99));
    ask.priority = Draw(0, 4);
    ask.order = static_cast<int64_t>(asks_.size());
    SetShape(ask);
    return ask;
  }

  void Wait(int i, int shapes) {
    const int shape = i % shapes;
    Waiting waiting;
    waiting.ask = &MakeAsk(1 + shape / 8 * 2, 1 + shape % 8, absl::Minutes(10 * Draw(1, 200)));
    waiting.use = Draw(0, 1000);
    queue_.waiting.push_back(waiting);
  }

  void Run(int node) {
    const Ask& ask = MakeAsk(1, 8, absl::Minutes(Draw(1, 2000)));
    Running job{5, ask.user, queue_.now, queue_.now + ask.limit};
    job.holds.push_back(Take(ask, queue_.cluster, node, 8, queue_.cluster.free));
    queue_.running.push_back(job);
  }

  double Pass() {
    const double before = CpuMilliseconds();
    const Decisions decisions = RunPass(rules_, queue_);
    const double took = CpuMilliseconds() - before;
    started_ += static_cast<int>(decisions.starts.size());
    return took;
  }

  // A tenth of the jobs ends; what the last pass started stays on its nodes.
  void EndSome() {
    queue_.now += absl::Minutes(1);
    std::shuffle(queue_.running.begin(), queue_.running.end(), random_);
    for (size_t i = 0; i < queue_.cluster.nodes.size() / 10 && !queue_.running.empty(); ++i) {
      for (const Taken& hold : queue_.running.back().holds) {
        Give(queue_.cluster, hold, queue_.cluster.free);
      }
      queue_.running.pop_back();
    }
  }

  std::mt19937 random_{1};
  std::deque<Ask> asks_;
  Queue queue_;
  QueueRules rules_;
  int started_ = 0;
};

int Main(int argc, char** argv) {
  int numbers[] = {10000, 1000, 200};
  for (int i = 1; i < argc && i <= 3; ++i) {
    if (!absl::SimpleAtoi(argv[i], &numbers[i - 1]) || numbers[i - 1] < 1) {
      std::fprintf(stderr, "usage: bench_queue [JOBS] [NODES] [SHAPES]\n");
      return 2;
    }
  }
  Bench(numbers[0], numbers[1], numbers[2]).Measure();
  return 0;
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
