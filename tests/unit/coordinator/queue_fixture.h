// SPDX-License-Identifier: Apache-2.0
// Queues for tests: nodes, jobs that wait and jobs that run. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_UNIT_COORDINATOR_QUEUE_FIXTURE_H_
#define LOCKSTEP_TESTS_UNIT_COORDINATOR_QUEUE_FIXTURE_H_

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/queue_pass.h"

namespace lockstep::coordinator {

struct Wish {
  int nodes = 1;
  int per_node = 1;
  int priority = 0;
  std::string user = {};
  absl::Duration limit = absl::InfiniteDuration();
  int least = 0;  // 0: all
  double use = 0;
};

class TestQueue {
 public:
  TestQueue() { queue.now = absl::UnixEpoch(); }

  int Node(int slots, int gpus = 0, int rack = 0) {
    const int place = static_cast<int>(queue.cluster.nodes.size());
    NodeFacts node;
    node.id = node.host = absl::StrCat("n", place);
    node.slots = slots;
    node.gpus = gpus;
    node.rack = rack;
    queue.cluster.nodes.push_back(node);
    queue.cluster.free.push_back({slots, (uint64_t{1} << gpus) - 1});
    return place;
  }

  Ask& MakeAsk(const Wish& wish) {
    Ask& ask = asks.emplace_back();
    ask.counts.assign(static_cast<size_t>(wish.nodes), wish.per_node);
    ask.wanted = wish.nodes * wish.per_node;
    ask.least = wish.least > 0 ? wish.least : ask.wanted;
    ask.per_node = wish.per_node;
    ask.gpus = Ask::Gpus::kNever;
    ask.priority = wish.priority;
    ask.user = wish.user;
    ask.limit = wish.limit;
    ask.order = static_cast<int64_t>(asks.size());
    SetShape(ask);
    return ask;
  }

  int Wait(const Wish& wish) {
    Waiting waiting;
    waiting.ask = &MakeAsk(wish);
    waiting.use = wish.use;
    queue.waiting.push_back(waiting);
    return static_cast<int>(queue.waiting.size()) - 1;
  }

  // Runs since `age` ago on the node.
  int Run(const Wish& wish, int node, absl::Duration age = absl::ZeroDuration()) {
    Running job{wish.priority, wish.user, queue.now - age, queue.now - age + wish.limit};
    job.may_stop = true;
    const Ask& ask = MakeAsk(wish);
    for (int i = 0; i < wish.nodes; ++i) {
      job.holds.push_back(Take(ask, queue.cluster, node + i, wish.per_node, queue.cluster.free));
    }
    queue.running.push_back(job);
    return static_cast<int>(queue.running.size()) - 1;
  }

  Decisions Pass() { return RunPass(rules, queue); }

  // The jobs that start, in order.
  static std::vector<int> Started(const Decisions& decisions) {
    std::vector<int> started;
    for (const Decisions::Start& start : decisions.starts) started.push_back(start.waiting);
    return started;
  }

  Queue queue;
  QueueRules rules;
  std::deque<Ask> asks;  // whose places do not change
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_UNIT_COORDINATOR_QUEUE_FIXTURE_H_
