// SPDX-License-Identifier: Apache-2.0
// What a pass over the queue takes of a CPU:
//   bench_queue [JOBS] [NODES] [SHAPES]
// NODES (1,000) of 8 slots and 8 GPUs in racks of 32 are full of jobs with time limits; JOBS
// (10,000) of SHAPES (200) kinds wait. One line of JSON: the pass that finds nobody room, the one
// after which a tenth of the running jobs have ended, and the best and worst of ten such. Two more
// lines are of a coordinator's state with as many nodes, which are full, and jobs: in the median
// and at most of ten times, what the rules see (view), the pass over it, why the first 16 jobs
// wait, which a coordinator says each time, all three together, why all jobs wait, which is
// said to whoever lists them, and what is told of one of them, with when it starts; once with
// running jobs that stop for none, once with such that may have to.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "coordinator/core/queue_pass.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/waiting.h"

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

// What is measured ten times.
class Times {
 public:
  void Add(double millis) { millis_.push_back(millis); }
  // "name_median_ms" and "name_most_ms".
  std::string Text(const char* name) {
    std::sort(millis_.begin(), millis_.end());
    return absl::StrFormat(",\"%s_median_ms\":%.2f,\"%s_most_ms\":%.2f", name,
                           millis_[millis_.size() / 2], name, millis_.back());
  }

 private:
  std::vector<double> millis_;
};

// The same with a coordinator's state, as its events make it. All jobs come at one time, since a
// pass is made again only after a while.
class StateBench {
 public:
  // `may_stop`: those that run are of no higher priority than those that wait.
  StateBench(int jobs, int nodes, int shapes, bool may_stop) : may_stop_(may_stop) {
    for (int i = 0; i < nodes; ++i) Join(i);
    for (int i = 0; i < nodes; ++i) {
      Submit(absl::StrCat("runs", i), 1, 8, Draw(1, 2000), may_stop ? Draw(0, 4) : 5);
    }
    now_ += absl::Minutes(1);
    Step(state_, Tick{}, now_);
    for (int i = 0; i < jobs; ++i) {
      const int shape = i % shapes;
      Submit(absl::StrCat("waits", i), 1 + shape / 8 * 2, 1 + shape % 8, 10 * Draw(1, 200),
             Draw(0, 4));
    }
  }

  void Measure() {
    Times view_times, pass_times, front_times, together, all_times, describe_times;
    size_t waiting = 0, running = 0, texts = 0;
    int described = 0;
    for (int i = 0; i < 10; ++i) {
      now_ += absl::Minutes(1);
      const double begin = CpuMilliseconds();
      QueueView view = ViewQueue(state_, now_);
      const double viewed = CpuMilliseconds();
      const Decisions decisions = RunPass(RulesOf(state_.options), view.queue);
      const double passed = CpuMilliseconds();
      {
        WaitingTexts front(state_, view, decisions);
        for (size_t k = 0; k < std::min<size_t>(16, decisions.order.size()); ++k) {
          texts += front.Of(decisions.order[k]).size();
        }
      }
      const double told = CpuMilliseconds();
      WaitingTexts all(state_, view, decisions);
      for (const Job* job : view.waiting) texts += all.Of(*job).size();
      all_times.Add(CpuMilliseconds() - told);
      view_times.Add(viewed - begin);
      pass_times.Add(passed - viewed);
      front_times.Add(told - passed);
      together.Add(told - begin);
      const double listed = CpuMilliseconds();
      if (!decisions.order.empty()) {
        // Of the jobs for which it is computed when they start, one that has most before it.
        const size_t last = std::min<size_t>(2000, decisions.order.size()) - 1;
        const Job& job = *view.waiting[static_cast<size_t>(decisions.order[last])];
        described += DescribeJob(state_, job.id, now_).ok();
      }
      describe_times.Add(CpuMilliseconds() - listed);
      waiting = view.queue.waiting.size();
      running = view.queue.running.size();
    }
    std::printf(
        "{\"may_stop\":%s,\"waiting\":%zu,\"running\":%zu,\"nodes\":%zu%s%s%s%s%s%s,\"text_bytes\":"
        "%zu,\"described\":%d}\n",
        may_stop_ ? "true" : "false", waiting, running, state_.nodes.size(),
        view_times.Text("view").c_str(), pass_times.Text("pass").c_str(),
        front_times.Text("front").c_str(), together.Text("together").c_str(),
        all_times.Text("all_texts").c_str(), describe_times.Text("describe").c_str(), texts,
        described);
  }

 private:
  int Draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  void Join(int i) {
    AgentSaid said;
    said.session = i + 1;
    AgentHello& hello = *said.message.mutable_hello();
    hello.set_node_id(absl::StrCat("host", i));
    hello.set_incarnation(absl::StrCat("host", i, "-1"));
    hello.set_host(absl::StrCat("host", i));
    hello.set_slots(8);
    hello.set_protocol_version(1);
    (*hello.mutable_labels())["rack"] = absl::StrCat("rack", i / 32);
    Step(state_, said, now_);
  }

  void Submit(const std::string& id, int nodes, int per_node, int minutes, int priority) {
    SubmitJobRequest request;
    JobSpec& spec = *request.mutable_spec();
    spec.set_name(id);
    spec.mutable_resources()->set_nodes(nodes);
    spec.mutable_resources()->set_nproc_per_node(per_node);
    spec.mutable_resources()->set_device("cpu");
    spec.mutable_train()->set_shards(nodes * per_node);
    spec.mutable_time_limit()->set_seconds(60 * minutes);
    spec.set_priority(priority);
    request.set_user(absl::StrCat("user", Draw(0, 99)));
    Step(state_, Submitted{id, request}, now_);
  }

  const bool may_stop_;
  std::mt19937 random_{1};
  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000000);
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
  for (const bool may_stop : {false, true}) {
    StateBench(numbers[0], numbers[1], numbers[2], may_stop).Measure();
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
