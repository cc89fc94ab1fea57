// SPDX-License-Identifier: Apache-2.0
// Plays a workload through the queue's rules in virtual time, beside plain first come, first
// served:
//   replay_queue [--nodes N] [--load L] [--seed S] [--days D] [--quarter] [TRACE.swf]
// TRACE is in the Standard Workload Format; its processors are slots. Without one the workload is
// drawn: sizes and run times as Lublin and Feitelson model them ("The workload on parallel
// supercomputers", 2003; all jobs together), users by Zipf's law, arrivals by a Poisson process
// with a cycle of a day, as many as make the load L (0.85) on N (128) nodes of one slot. Users ask
// for more time than they need: the run time times something from 1 to 10, an hour at most beyond a
// day. With --quarter a quarter of the jobs has priority 1. One line of JSON for each set of rules:
// how full the nodes were between the first and the last arrival, how long jobs waited, their
// slowdown (bounded at 10 s) and how many passes there were.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/queue_pass.h"

namespace lockstep::coordinator {
namespace {

struct Task {
  double arrives = 0;  // seconds
  double runs = 0;
  double limit = 0;
  int slots = 1;
  int priority = 0;
  std::string user;
};

struct Setup {
  int nodes = 128;
  double load = 0.85;
  unsigned seed = 1;
  double days = 1;
  bool quarter = false;
  std::string trace;
};

// --- the drawn workload ---

class Drawing {
 public:
  explicit Drawing(const Setup& setup) : setup_(setup), random_(setup.seed) {}

  std::vector<Task> Draw() {
    const double end = setup_.days * 86400;
    double work = 0;
    std::vector<Task> tasks;
    while (work < setup_.load * setup_.nodes * end) {
      Task task;
      task.slots = Size();
      task.runs = RunTime(task.slots);
      task.limit = std::ceil(task.runs * Uniform(1, 10) / 60) * 60;
      task.limit = std::min(task.limit, std::max(86400.0, task.runs + 3600));
      task.user = absl::StrCat("user", User());
      if (setup_.quarter && Uniform(0, 1) < 0.25) task.priority = 1;
      task.arrives = Arrival(end);
      work += task.slots * task.runs;
      tasks.push_back(task);
    }
    return tasks;
  }

 private:
  double Uniform(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }

  // Serial with 0.244; else the logarithm is uniform in two stages, and a power of two with 0.576.
  int Size() {
    if (Uniform(0, 1) < 0.244) return 1;
    const double high = std::log2(setup_.nodes), middle = std::max(0.8, high - 2.5);
    double log = Uniform(0, 1) < 0.86 ? Uniform(0.8, middle) : Uniform(middle, high);
    if (Uniform(0, 1) < 0.576) log = std::round(log);
    return std::clamp(static_cast<int>(std::lround(std::exp2(log))), 1, setup_.nodes);
  }

  // Its logarithm has a hyper-gamma distribution: large jobs run longer. At most two days.
  double RunTime(int slots) {
    const double first = std::clamp(-0.0054 * slots + 0.78, 0.0, 1.0);
    std::gamma_distribution<double> quick(4.2, 0.94), slow(312, 0.03);
    const double log = Uniform(0, 1) < first ? quick(random_) : slow(random_);
    return std::clamp(std::exp(log), 1.0, 2 * 86400.0);
  }

  // Five times as many by day as by night.
  double Arrival(double end) {
    for (;;) {
      const double time = Uniform(0, end);
      const double day = 0.6 - 0.4 * std::cos(2 * M_PI * time / 86400);
      if (Uniform(0, 1) < day) return time;
    }
  }

  int User() {
    std::vector<double> weights;
    for (int i = 1; i <= 50; ++i) weights.push_back(1.0 / i);
    return std::discrete_distribution<int>(weights.begin(), weights.end())(random_);
  }

  const Setup& setup_;
  std::mt19937 random_;
};

// Fields of a line: number, submitted, waited, ran, processors, ..., 8 asked processors, 9 asked
// time, 11 status, 12 user.
std::vector<Task> ReadTrace(const Setup& setup) {
  std::ifstream file(setup.trace);
  std::vector<Task> tasks;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == ';') continue;
    std::istringstream text(line);
    std::vector<double> fields;
    for (double field = 0; text >> field;) fields.push_back(field);
    if (fields.size() < 12) continue;
    Task task;
    task.arrives = fields[1];
    task.runs = fields[3];
    task.slots = static_cast<int>(fields[4] > 0 ? fields[4] : fields[7]);
    task.limit = fields[8] > 0 ? std::max(fields[8], task.runs) : task.runs;
    task.user = absl::StrCat(fields[11]);
    const bool fits = task.slots > 0 && task.slots <= setup.nodes && task.runs > 0;
    if (fits && task.arrives <= setup.days * 86400) tasks.push_back(task);
  }
  return tasks;
}

// --- the play ---

struct Result {
  double full = 0;  // share of the slots between first and last arrival
  std::vector<double> waits;
  double slowdown = 0;
  int passes = 0;
  int stops = 0;
  double most_ms = 0;  // CPU of a pass
};

class Play {
 public:
  Play(const Setup& setup, const std::vector<Task>& tasks, const QueueRules& rules, bool fair)
      : tasks_(tasks), rules_(rules), fair_(fair) {
    for (int i = 0; i < setup.nodes; ++i) {
      NodeFacts node;
      node.id = node.host = absl::StrCat("n", i);
      node.slots = 1;
      queue_.cluster.nodes.push_back(node);
    }
    queue_.cluster.free = Whole(queue_.cluster);
    for (const Task& task : tasks_) {
      Ask& ask = asks_.emplace_back();
      ask.counts.assign(static_cast<size_t>(task.slots), 1);
      ask.wanted = ask.least = task.slots;
      ask.gpus = Ask::Gpus::kNever;
      ask.limit = absl::Seconds(task.limit);
      ask.user = task.user;
      ask.priority = task.priority;
      ask.order = static_cast<int64_t>(asks_.size());
      SetShape(ask);
      left_.push_back(task.runs);
    }
  }

  Result Run() {
    size_t next = 0;
    while (next < tasks_.size() || !running_.empty()) {
      double time = next < tasks_.size() ? tasks_[next].arrives : 1e300;
      if (!running_.empty()) time = std::min(time, running_.begin()->first);
      Count(time);
      // Use counts for half after a week.
      for (auto& [user, use] : uses_) use *= std::exp2((now_ - time) / (7 * 86400));
      now_ = time;
      queue_.now = absl::UnixEpoch() + absl::Seconds(now_);
      while (!running_.empty() && running_.begin()->first <= now_) End();
      for (; next < tasks_.size() && tasks_[next].arrives <= now_; ++next) Wait(next);
      Pass();
    }
    const double span = tasks_.back().arrives - tasks_.front().arrives;
    result_.full = used_ / (span * static_cast<double>(queue_.cluster.nodes.size()));
    result_.slowdown /= static_cast<double>(tasks_.size());
    std::sort(result_.waits.begin(), result_.waits.end());
    return result_;
  }

 private:
  void Count(double time) {
    const double end = std::min(time, tasks_.back().arrives);
    if (end > now_ && now_ >= tasks_.front().arrives) used_ += busy_ * (end - now_);
  }

  void Wait(size_t task) {
    Waiting waiting;
    waiting.ask = &asks_[task];
    queue_.waiting.push_back(waiting);
    waiting_.push_back(task);
  }

  size_t PlaceOf(size_t task) const {
    return static_cast<size_t>(std::find(tasks_running_.begin(), tasks_running_.end(), task) -
                               tasks_running_.begin());
  }

  void TakeOut(size_t place) {
    const Running& job = queue_.running[place];
    for (const Taken& hold : job.holds) Give(queue_.cluster, hold, queue_.cluster.free);
    const size_t task = tasks_running_[place];
    busy_ -= tasks_[task].slots;
    double& use = uses_[job.user];
    use += tasks_[task].slots * (now_ - absl::ToDoubleSeconds(job.started - absl::UnixEpoch()));
    queue_.running.erase(queue_.running.begin() + static_cast<long>(place));
    tasks_running_.erase(tasks_running_.begin() + static_cast<long>(place));
  }

  void End() {
    const size_t task = running_.begin()->second;
    running_.erase(running_.begin());
    TakeOut(PlaceOf(task));
    const double waited = now_ - tasks_[task].arrives - tasks_[task].runs;
    result_.waits.push_back(std::max(0.0, waited));
    const double run = std::max(10.0, tasks_[task].runs);
    result_.slowdown += std::max(1.0, (waited + tasks_[task].runs) / run);
  }

  // It stops at once, as if saving took no time, and goes on later from where it was.
  void Stop(size_t task) {
    const size_t place = PlaceOf(task);
    left_[task] -= now_ - absl::ToDoubleSeconds(queue_.running[place].started - absl::UnixEpoch());
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      if (it->second != task) continue;
      running_.erase(it);
      break;
    }
    TakeOut(place);
    Wait(task);
    ++result_.stops;
  }

  void Pass() {
    if (fair_) {
      for (size_t i = 0; i < waiting_.size(); ++i) {
        const Task& task = tasks_[waiting_[i]];
        queue_.waiting[i].use = uses_[task.user];
        queue_.waiting[i].overdue = now_ - task.arrives >= 86400;
      }
    }
    const std::vector<Free> before = queue_.cluster.free;
    timespec begin = {}, end = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    const Decisions decisions = RunPass(rules_, queue_);
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double took = 1e3 * static_cast<double>(end.tv_sec - begin.tv_sec) +
                        1e-6 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    result_.most_ms = std::max(result_.most_ms, took);
    ++result_.passes;
    queue_.cluster.free = before;
    std::vector<size_t> stop;
    for (const int place : decisions.stop) {
      stop.push_back(tasks_running_[static_cast<size_t>(place)]);
    }
    std::vector<bool> gone(waiting_.size());
    for (const Decisions::Start& start : decisions.starts) {
      gone[static_cast<size_t>(start.waiting)] = true;
      Begin(waiting_[static_cast<size_t>(start.waiting)], start.placement);
    }
    size_t kept = 0;
    for (size_t i = 0; i < gone.size(); ++i) {
      if (gone[i]) continue;
      waiting_[kept] = waiting_[i];
      queue_.waiting[kept++] = queue_.waiting[i];
    }
    waiting_.resize(kept);
    queue_.waiting.resize(kept);
    for (const size_t task : stop) Stop(task);
    if (!stop.empty()) Pass();
  }

  void Begin(size_t task, const Placement& placement) {
    const Ask& ask = asks_[task];
    Running job{ask.priority, ask.user, queue_.now, queue_.now + ask.limit};
    job.may_stop = true;
    for (const auto& [node, workers] : placement) {
      job.holds.push_back(Take(ask, queue_.cluster, node, workers, queue_.cluster.free));
    }
    queue_.running.push_back(std::move(job));
    tasks_running_.push_back(task);
    running_.emplace(now_ + left_[task], task);
    busy_ += tasks_[task].slots;
  }

  const std::vector<Task>& tasks_;
  const QueueRules rules_;
  const bool fair_;
  std::deque<Ask> asks_;
  Queue queue_;
  std::vector<size_t> waiting_;            // the task of each place in queue_.waiting
  std::vector<size_t> tasks_running_;      // and in queue_.running
  std::multimap<double, size_t> running_;  // by their ends
  std::vector<double> left_;               // of each task's run time
  std::map<std::string, double> uses_;
  double now_ = 0;
  double busy_ = 0;
  double used_ = 0;
  Result result_;
};

void Print(const char* name, const Result& result, const std::vector<Task>& tasks) {
  double sum = 0;
  for (const double wait : result.waits) sum += wait;
  const auto at = [&](double share) {
    return result.waits[static_cast<size_t>(share * static_cast<double>(result.waits.size() - 1))];
  };
  std::printf(
      "{\"rules\":\"%s\",\"jobs\":%zu,\"utilisation\":%.4f,\"mean_wait_s\":%.0f,"
      "\"median_wait_s\":%.0f,\"p95_wait_s\":%.0f,\"most_wait_s\":%.0f,\"slowdown\":%.1f,"
      "\"stops\":%d,\"passes\":%d,\"most_pass_ms\":%.2f}\n",
      name, tasks.size(), result.full, sum / static_cast<double>(tasks.size()), at(0.5), at(0.95),
      at(1.0), result.slowdown, result.stops, result.passes, result.most_ms);
}

bool Parse(int argc, char** argv, Setup* setup) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quarter") {
      setup->quarter = true;
    } else if (word.rfind("--", 0) != 0) {
      setup->trace = word;
    } else {
      double value = 0;
      if (++i == argc || !absl::SimpleAtod(argv[i], &value) || value <= 0) return false;
      if (word == "--nodes") setup->nodes = static_cast<int>(value);
      if (word == "--load") setup->load = value;
      if (word == "--seed") setup->seed = static_cast<unsigned>(value);
      if (word == "--days") setup->days = value;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Setup setup;
  if (!Parse(argc, argv, &setup)) {
    std::fprintf(stderr,
                 "usage: replay_queue [--nodes N] [--load L] [--seed S] [--days D] "
                 "[--quarter] [TRACE.swf]\n");
    return 2;
  }
  std::vector<Task> tasks = setup.trace.empty() ? Drawing(setup).Draw() : ReadTrace(setup);
  if (tasks.empty()) {
    std::fprintf(stderr, "no jobs in '%s'\n", setup.trace.c_str());
    return 1;
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.arrives < b.arrives; });
  QueueRules rules;
  rules.preempt = false;
  rules.backfill = false;
  Print("fifo", Play(setup, tasks, rules, false).Run(), tasks);
  rules.backfill = true;
  Print("fifo+backfill", Play(setup, tasks, rules, false).Run(), tasks);
  rules.preempt = true;
  Print("lockstep", Play(setup, tasks, rules, true).Run(), tasks);
  return 0;
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
