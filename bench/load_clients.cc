// SPDX-License-Identifier: Apache-2.0
// Clients, agents and workers of a coordinator in one process, for bench/load.py:
//   load_clients submit ADDRESS TOKEN_FILE CLIENTS JOBS IDS_FILE
//   load_clients agents ADDRESS TOKEN_FILE AGENTS SECONDS
//   load_clients missing ADDRESS TOKEN_FILE IDS_FILE
// `submit`: CLIENTS threads, each with a connection of its own, submit JOBS jobs one after the
// other; the ids of those that were accepted are in IDS_FILE as soon as they are. `agents`: AGENTS
// agents, each with a connection of its own, join, send heartbeats and get a job of as many ranks;
// each rank is a worker with another connection. They step for SECONDS and say so in heartbeats.
// Nothing is trained. `missing`: how many of the jobs in IDS_FILE the coordinator does not know.
// TOKEN_FILE is empty on a Unix socket. One line of JSON.
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/mutex_checks.h"
#include "common/thread.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/client.h"
#include "coordinator/client/token.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

double CpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Percentile(std::vector<double>& sorted, double part) {
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(sorted.size())))];
}

SubmitJobRequest JobOf(int workers, const std::string& name) {
  SubmitJobRequest request;
  request.mutable_spec()->set_name(name);
  request.mutable_spec()->mutable_resources()->set_nodes(workers);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_resources()->set_device("cpu");
  request.mutable_spec()->mutable_train()->set_shards(workers);
  request.set_submit_dir("/tmp");
  request.set_source("# a job of bench/load.py\n");
  return request;
}

int Submit(const ClientOptions& options, int clients, int jobs, const std::string& ids_file) {
  std::ofstream ids(ids_file);
  std::atomic<int> next = 0, failed = 0;
  absl::Mutex mu;
  std::vector<double> millis;
  Clock* const clock = Clock::Real();
  const absl::Time begin = clock->Now();
  {
    std::deque<Thread> threads;
    for (int c = 0; c < clients; ++c) {
      threads.emplace_back("client", [&, c] {
        const std::unique_ptr<Client> client = Client::Create(options);
        for (int i = next++; i < jobs; i = next++) {
          SubmitJobRequest request = JobOf(1 + i % 8, "load");
          request.set_request_id(absl::StrCat(::getpid(), "-", c, "-", i));
          const absl::Time asked = clock->Now();
          const auto submitted = client->SubmitJob(request, absl::Seconds(60));
          const double took = absl::ToDoubleMilliseconds(clock->Now() - asked);
          absl::MutexLock lock(&mu);
          if (!submitted.ok()) {
            if (failed++ == 0) std::fprintf(stderr, "%s\n", submitted.status().ToString().c_str());
            continue;
          }
          millis.push_back(took);
          ids << submitted->job_id() << "\n" << std::flush;
        }
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  const double seconds = absl::ToDoubleSeconds(clock->Now() - begin);
  std::printf(
      "{\"clients\": %d, \"accepted\": %zu, \"failed\": %d, \"seconds\": %.3f, \"per_second\": "
      "%.0f, "
      "\"p50_ms\": %.2f, \"p99_ms\": %.2f, \"most_ms\": %.2f, \"client_cpu_s\": %.2f}\n",
      clients, millis.size(), failed.load(), seconds, static_cast<double>(millis.size()) / seconds,
      Percentile(millis, 0.5), Percentile(millis, 0.99), Percentile(millis, 1), CpuSeconds());
  return failed == 0 ? 0 : 1;
}

// One stream on a connection of its own: a first message, then what is queued, one write at a time.
template <typename Out, typename In>
class Stream : public grpc::ClientBidiReactor<Out, In> {
 public:
  using OnCommand = std::function<void(const In&)>;
  Stream(const ClientOptions& options, OnCommand on_command)
      : channel_(MakeChannel(options)),
        stub_(lockstep::Coordinator::NewStub(channel_)),
        on_command_(std::move(on_command)) {
    context_.set_wait_for_ready(true);
  }

  void Open(const ClientOptions& options, const Out& hello) {
    ShowToken(options, &context_);
    Begin();
    Send(hello);
    this->StartRead(&read_);
    this->StartCall();
  }
  void Send(const Out& message) {
    absl::MutexLock lock(&mu_);
    queue_.push_back(message);
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }
  // Nothing when something is on its way still.
  void SendWhenIdle(const Out& message) {
    absl::MutexLock lock(&mu_);
    if (!queue_.empty()) return;
    queue_.push_back(message);
    this->StartWrite(&queue_.front());
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (!ok) return;
    queue_.pop_front();
    if (!queue_.empty()) this->StartWrite(&queue_.front());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_command_(read_);
    this->StartRead(&read_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mu_);
    if (!over_ && !status.ok()) {
      std::fprintf(stderr, "a stream ended: %s\n", status.error_message().c_str());
    }
    done_ = true;
  }
  void Cancel() {
    {
      absl::MutexLock lock(&mu_);
      over_ = true;
    }
    context_.TryCancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
  }

 private:
  void Begin();

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<lockstep::Coordinator::Stub> stub_;
  const OnCommand on_command_;
  grpc::ClientContext context_;
  In read_;
  absl::Mutex mu_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mu_);  // the first one is being written
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

using AgentStream = Stream<AgentMessage, AgentCommand>;
using WorkerStream = Stream<WorkerMessage, WorkerCommand>;
template <>
void AgentStream::Begin() {
  stub_->async()->AgentSession(&context_, this);
}
template <>
void WorkerStream::Begin() {
  stub_->async()->WorkerSession(&context_, this);
}

constexpr int kProtocol = 1;

// What becomes of all of them.
struct Progress {
  std::atomic<int> joined = 0;    // agents that were told what to run
  std::atomic<int> started = 0;   // workers
  std::atomic<int> admitted = 0;  // workers that were told a generation of all ranks
};

// One agent and its worker.
class Host {
 public:
  Host(const ClientOptions& options, int number, int ranks, Progress* progress)
      : options_(options),
        name_(absl::StrCat("load-", number)),
        number_(number),
        ranks_(ranks),
        progress_(progress),
        agent_(options, [this](const AgentCommand& command) { OnCommand(command); }) {}

  void Join() {
    AgentMessage message;
    AgentHello& hello = *message.mutable_hello();
    hello.set_node_id(name_);
    hello.set_incarnation(absl::StrCat(name_, "-1"));
    hello.set_host(name_);
    hello.set_slots(1);
    hello.set_protocol_version(kProtocol);
    agent_.Open(options_, message);
  }
  void Beat() {
    AgentMessage message;
    message.mutable_heartbeat();
    agent_.Send(message);
    // As a worker does that waits for the others.
    if (!has_worker_ || generation_ != 0) return;
    WorkerMessage beat = FromWorker();
    beat.mutable_heartbeat();
    worker_->SendWhenIdle(beat);
  }
  // Says what a worker says five times a second.
  void Step(int64_t step) {
    const int64_t generation = generation_;
    if (generation == 0) return;
    WorkerMessage message = FromWorker();
    WorkerHeartbeat& heartbeat = *message.mutable_heartbeat();
    heartbeat.set_generation(generation);
    heartbeat.set_progress_counter(step);
    heartbeat.mutable_progress()->set_step(step);
    worker_->Send(message);
  }
  void End() {
    if (has_worker_) worker_->Cancel();
    agent_.Cancel();
  }

 private:
  WorkerMessage FromWorker() const {
    WorkerMessage message;
    message.set_job_id(job_);
    message.set_incarnation(incarnation_);
    return message;
  }
  void OnCommand(const AgentCommand& command) {
    if (command.has_rejected()) std::fprintf(stderr, "%s\n", command.rejected().reason().c_str());
    if (!command.has_desired()) return;
    if (!joined_) ++progress_->joined;
    joined_ = true;
    if (command.desired().workers().empty() || has_worker_) return;
    const WorkerAssignment& assignment = command.desired().workers(0);
    job_ = assignment.job_id();
    incarnation_ = assignment.incarnation();
    AgentMessage started;
    started.mutable_started()->set_job_id(job_);
    started.mutable_started()->set_worker_incarnation(incarnation_);
    started.mutable_started()->set_pid(1000);
    agent_.Send(started);
    ClientOptions options = options_;
    if (!options.token.empty()) options.token = WithSecret(options.token, assignment.token());
    worker_ = std::make_unique<WorkerStream>(
        options, [this](const WorkerCommand& news) { OnWorkerCommand(news); });
    WorkerMessage hello = FromWorker();
    hello.mutable_hello()->set_protocol_version(kProtocol);
    hello.mutable_hello()->set_pid(1000);
    worker_->Open(options, hello);
    WorkerMessage ready = FromWorker();
    ready.mutable_ready()->set_plan_hash("0123456789abcdef");
    ready.mutable_ready()->set_device_hash("0123456789abcdef");
    ready.mutable_ready()->mutable_address()->set_node_id(name_);
    ready.mutable_ready()->mutable_address()->add_tcp(
        absl::StrCat("10.0.", number_ / 256, ".", number_ % 256, ":40000"));
    worker_->Send(ready);
    has_worker_ = true;
    ++progress_->started;
  }
  void OnWorkerCommand(const WorkerCommand& command) {
    if (!command.has_generation() || command.generation().members_size() != ranks_) return;
    if (generation_.exchange(command.generation().generation()) == 0) ++progress_->admitted;
  }

  const ClientOptions options_;
  const std::string name_;
  const int number_;
  const int ranks_;
  Progress* const progress_;
  bool joined_ = false;
  std::string job_;
  std::string incarnation_;
  std::atomic<bool> has_worker_ = false;
  std::atomic<int64_t> generation_ = 0;
  std::unique_ptr<WorkerStream> worker_;
  AgentStream agent_;  // its commands come last to an end
};

// Waits until as many have come; agents say meanwhile that they live. Seconds since `begin`, or -1:
// too late.
double WaitFor(const std::atomic<int>& count, int wanted, std::deque<Host>& hosts,
               absl::Time begin) {
  Clock* const clock = Clock::Real();
  absl::Time beat = begin + absl::Seconds(1);
  while (count < wanted) {
    clock->Sleep(absl::Milliseconds(1));
    if (clock->Now() > begin + absl::Minutes(1)) return -1;
    if (clock->Now() < beat) continue;
    beat += absl::Seconds(1);
    for (Host& host : hosts) host.Beat();
  }
  return absl::ToDoubleSeconds(clock->Now() - begin);
}

// bench/load.py looks at the coordinator.
void SayWhere(const char* at) {
  std::printf("{\"at\": \"%s\"}\n", at);
  std::fflush(stdout);
}

int Agents(const ClientOptions& options, int agents, int seconds) {
  Clock* const clock = Clock::Real();
  Progress progress;
  std::deque<Host> hosts;
  for (int i = 0; i < agents; ++i) hosts.emplace_back(options, i, agents, &progress);
  const absl::Time begin = clock->Now();
  for (Host& host : hosts) host.Join();
  const double joined = WaitFor(progress.joined, agents, hosts, begin);
  const double cpu_joined = CpuSeconds();
  SayWhere("joined");
  const std::unique_ptr<Client> client = Client::Create(options);
  const absl::Time asked = clock->Now();
  const auto submitted = client->SubmitJob(JobOf(agents, "rendezvous"), absl::Seconds(60));
  if (!submitted.ok()) {
    std::fprintf(stderr, "%s\n", submitted.status().ToString().c_str());
    return 1;
  }
  const double rendezvous = WaitFor(progress.admitted, agents, hosts, asked);
  const double cpu_rendezvous = CpuSeconds() - cpu_joined;
  SayWhere("rendezvous");
  const double cpu_steps = CpuSeconds();
  for (int tick = 1; tick <= 5 * seconds && rendezvous >= 0; ++tick) {
    const absl::Time next = clock->Now() + absl::Milliseconds(200);
    for (Host& host : hosts) {
      host.Step(tick);
      if (tick % 5 == 0) host.Beat();
    }
    clock->Sleep(next - clock->Now());
  }
  std::printf(
      "{\"agents\": %d, \"started\": %d, \"admitted\": %d, \"join_s\": %.3f, \"rendezvous_s\": "
      "%.3f, "
      "\"agents_cpu_join_s\": %.2f, \"agents_cpu_rendezvous_s\": %.2f, \"agents_cpu_steps_s\": "
      "%.2f, "
      "\"steps_s\": %d}\n",
      agents, progress.started.load(), progress.admitted.load(), joined, rendezvous, cpu_joined,
      cpu_rendezvous, CpuSeconds() - cpu_steps, seconds);
  std::fflush(stdout);
  for (Host& host : hosts) host.End();
  return joined >= 0 && rendezvous >= 0 ? 0 : 1;
}

int Missing(const ClientOptions& options, const std::string& ids_file) {
  ListJobsRequest request;
  request.set_include_ended(true);
  const auto jobs = Client::Create(options)->ListJobs(request, absl::Seconds(60));
  if (!jobs.ok()) {
    std::fprintf(stderr, "%s\n", jobs.status().ToString().c_str());
    return 1;
  }
  std::set<std::string> known;
  for (const JobStatus& job : jobs->jobs()) known.insert(job.job_id());
  std::ifstream ids(ids_file);
  int asked = 0, missing = 0;
  for (std::string id; ids >> id; ++asked) missing += known.count(id) == 0;
  std::printf("{\"asked\": %d, \"missing\": %d}\n", asked, missing);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int first = 0, second = 0;
  const bool submits = what == "submit" && argc == 7, asks = what == "missing" && argc == 5;
  const bool counts = submits || (what == "agents" && argc == 6);
  if ((!counts && !asks) || (counts && (!absl::SimpleAtoi(argv[4], &first) ||
                                        !absl::SimpleAtoi(argv[5], &second) || first < 1))) {
    std::fputs(
        "usage: load_clients submit ADDRESS TOKEN_FILE CLIENTS JOBS IDS_FILE\n"
        "       load_clients agents ADDRESS TOKEN_FILE AGENTS SECONDS\n"
        "       load_clients missing ADDRESS TOKEN_FILE IDS_FILE\n",
        stderr);
    return 2;
  }
  ClientOptions options{argv[2], ""};
  if (*argv[3] != '\0') {
    const absl::StatusOr<std::string> token = ReadToken(argv[3]);
    if (!token.ok()) {
      std::fprintf(stderr, "%s\n", token.status().ToString().c_str());
      return 1;
    }
    options.token = *token;
  }
  if (asks) return Missing(options, argv[4]);
  if (submits) return Submit(options, first, second, argv[6]);
  return Agents(options, first, second);
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  lockstep::SkipMutexChecksInRelease();
  return lockstep::coordinator::Main(argc, argv);
}
