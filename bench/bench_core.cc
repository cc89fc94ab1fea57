// SPDX-License-Identifier: Apache-2.0
// What the coordinator's core takes of a CPU for a job of many hosts, without network and disk:
//   bench_core HOSTS [SECONDS]
// One worker a host; above 4,096 hosts, the most that a job has, there are several jobs. Virtual
// time: what the hosts say comes in over SECONDS (1). One line of JSON for each of: the hosts come;
// the job starts, its workers are ready and are told the first generation; a worker dies, its peers
// say that they are ready again, a new one comes and all are told the next generation; a second of
// heartbeats, five from each.
#include <time.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"

namespace lockstep::coordinator {
namespace {

absl::Duration CpuTime() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Returns what it takes to ask for the time once more; the kernel is asked each time.
absl::Duration CostOfAsking() {
  constexpr int kTimes = 10000;
  const absl::Duration before = CpuTime();
  for (int i = 1; i < kTimes; ++i) CpuTime();
  return (CpuTime() - before) / kTimes;
}

struct Process {
  std::string job;
  std::string incarnation;
  SessionId session = 0;
  int64_t told = 0;  // the newest generation
};

class Bench {
 public:
  Bench(int hosts, absl::Duration spread) : hosts_(hosts), spread_(spread) {}

  void Run() {
    Hosts();
    Start();
    Heal();
    Beat();
  }

 private:
  static constexpr SessionId kFirstWorkerSession = 1000000;

  // Takes a step, and those that are due before it.
  void Take(const Event& event, absl::Time at) {
    while (wake_ <= at) Do(Tick{}, std::max(now_, wake_));
    Do(event, at);
  }
  void Do(const Event& event, absl::Time at) {
    now_ = std::max(now_, at);
    const absl::Duration before = CpuTime();
    const Effects effects = Step(state_, event, now_);
    cpu_ += CpuTime() - before - asking_;
    ++steps_;
    wake_ = effects.wake_at;
    for (const ToAgent& message : effects.to_agents) {
      for (const WorkerAssignment& worker : message.command.desired().workers()) {
        Process& process = processes_[static_cast<int>(message.session)];
        if (process.incarnation == worker.incarnation()) continue;
        process = {worker.job_id(), worker.incarnation(), 0, 0};
        started_.push_back(static_cast<int>(message.session));
      }
    }
    for (const ToWorker& message : effects.to_workers) {
      if (!message.generation) continue;
      Process& process = processes_[static_cast<int>(message.session % kFirstWorkerSession)];
      if (process.session == message.session) process.told = message.generation->generation();
    }
  }
  // A second passes.
  void Rest() {
    const absl::Time until = now_ + absl::Seconds(1);
    while (wake_ <= until) Do(Tick{}, std::max(now_, wake_));
    now_ = until;
  }
  void Report(const char* what) {
    std::printf("{\"hosts\": %d, \"what\": \"%s\", \"steps\": %lld, \"cpu_ms\": %.2f}\n", hosts_,
                what, static_cast<long long>(steps_), absl::ToDoubleMilliseconds(cpu_));
    std::fflush(stdout);
    steps_ = 0;
    cpu_ = absl::ZeroDuration();
  }
  absl::Duration Gap(int messages) const { return spread_ / (messages * hosts_); }

  void Hosts() {
    for (int i = 1; i <= hosts_; ++i) {
      AgentSaid said;
      said.session = i;
      AgentHello& hello = *said.message.mutable_hello();
      hello.set_node_id(absl::StrCat("host-", i));
      hello.set_incarnation(absl::StrCat("host-", i, "-1"));
      hello.set_host(absl::StrCat("host-", i));
      hello.set_slots(1);
      hello.set_protocol_version(1);
      Take(said, now_ + Gap(1));
    }
    Rest();
    Report("the hosts come");
  }
  WorkerMessage From(const Process& process) const {
    WorkerMessage message;
    message.set_job_id(process.job);
    message.set_incarnation(process.incarnation);
    return message;
  }
  void Connect(int host) {
    Process& process = processes_.at(host);
    AgentSaid started;
    started.session = host;
    WorkerStarted& worker = *started.message.mutable_started();
    worker.set_job_id(process.job);
    worker.set_worker_incarnation(process.incarnation);
    worker.set_pid(1000);
    Take(started, now_ + Gap(4));
    process.session = kFirstWorkerSession * ++lives_[host] + host;
    WorkerMessage hello = From(process);
    hello.mutable_hello()->set_protocol_version(1);
    hello.mutable_hello()->set_pid(1000);
    Take(WorkerSaid{process.session, hello}, now_ + Gap(4));
    Ready(host);
  }
  void Ready(int host) {
    const Process& process = processes_.at(host);
    WorkerMessage message = From(process);
    WorkerReady& ready = *message.mutable_ready();
    ready.set_highest_generation(process.told);
    if (process.told > 0) ready.set_committed_step(100);
    ready.set_plan_hash("0123456789abcdef");
    ready.set_device_hash("0123456789abcdef");
    ready.set_device_description("AMD EPYC");
    ready.mutable_address()->set_node_id(absl::StrCat("host-", host));
    ready.mutable_address()->add_tcp(absl::StrCat("10.0.", host / 256, ".", host % 256, ":40000"));
    Take(WorkerSaid{process.session, message}, now_ + Gap(4));
  }
  void Start() {
    const int jobs = (hosts_ + kMaxWorkers - 1) / kMaxWorkers;
    for (int i = 0; i < jobs; ++i) {
      const int workers = hosts_ / jobs;
      SubmitJobRequest request;
      request.mutable_spec()->set_name("job");
      request.mutable_spec()->mutable_resources()->set_nodes(workers);
      request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
      request.mutable_spec()->mutable_train()->set_shards(workers);
      request.mutable_spec()->mutable_restart()->set_max_restarts(3);
      Take(Submitted{absl::StrCat("job-", i), request}, now_);
    }
    for (const int host : std::exchange(started_, {})) Connect(host);
    Rest();
    Report("the job starts");
    Check(1);
  }
  void Check(int64_t generation) const {
    for (const auto& [host, process] : processes_) {
      if (process.told == generation) continue;
      std::printf("host %d was told generation %lld\n", host, static_cast<long long>(process.told));
      std::exit(1);
    }
  }
  void Heal() {
    std::map<std::string, int> first;  // of each job
    for (const auto& [host, process] : processes_) first.try_emplace(process.job, host);
    for (const auto& [job, host] : first) {
      AgentSaid died;
      died.session = host;
      WorkerExited& exited = *died.message.mutable_exited();
      exited.set_job_id(job);
      exited.set_worker_incarnation(processes_.at(host).incarnation);
      exited.set_signal(9);
      Take(died, now_);
    }
    const absl::Time until = now_ + absl::Milliseconds(500);
    while (wake_ <= until) Do(Tick{}, std::max(now_, wake_));
    for (const int host : std::exchange(started_, {})) Connect(host);
    for (const auto& [host, process] : processes_) {
      if (process.told > 0) Ready(host);
    }
    Rest();
    Report("a worker of each job dies");
    Check(2);
  }
  void Beat() {
    for (int beat = 1; beat <= 5; ++beat) {
      for (const auto& [host, process] : processes_) {
        WorkerMessage message = From(process);
        WorkerHeartbeat& heartbeat = *message.mutable_heartbeat();
        heartbeat.set_generation(2);
        heartbeat.set_progress_counter(beat);
        heartbeat.mutable_progress()->set_step(100 + beat);
        Take(WorkerSaid{process.session, message}, now_ + Gap(5));
      }
    }
    Report("a second of steps");
  }

  const int hosts_;
  const absl::Duration spread_;
  const absl::Duration asking_ = CostOfAsking();
  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000000);
  absl::Time wake_ = absl::InfiniteFuture();
  absl::Duration cpu_;
  int64_t steps_ = 0;
  std::map<int, Process> processes_;
  std::map<int, int> lives_;
  std::vector<int> started_;
};

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  int hosts = 0;
  double seconds = 1;
  if (argc < 2 || !absl::SimpleAtoi(argv[1], &hosts) || hosts < 2 || hosts > 8192 ||
      (argc > 2 && !absl::SimpleAtod(argv[2], &seconds))) {
    std::fputs("usage: bench_core HOSTS [SECONDS], 2 to 8192 hosts\n", stderr);
    return 2;
  }
  lockstep::coordinator::Bench(hosts, absl::Seconds(seconds)).Run();
  return 0;
}
