// SPDX-License-Identifier: Apache-2.0
// A worker that speaks to the coordinator and only pretends to train. What it does is in its
// environment, which the test's job file sets:
//   FAKE_STEPS       steps until it finishes (default 3); -1: goes on until it is told to stop
//   FAKE_FAIL        "<slot>:exit<code>" or "<slot>:signal<number>" after the first step
//   FAKE_STUBBORN=1  ignores SIGTERM and drains
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/life.h"
#include "coordinator/client/client.h"
#include "proto/coordinator.pb.h"

namespace lockstep {
namespace {

std::string Env(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

class FakeWorker {
 public:
  explicit FakeWorker(WorkerBootstrap bootstrap) : bootstrap_(std::move(bootstrap)) {}

  int Run() {
    coordinator::WorkerSession::Callbacks callbacks;
    callbacks.hello = [this] { return Hello(); };
    callbacks.on_command = [this](const WorkerCommand& command) { OnCommand(command); };
    session_ = coordinator::OpenWorkerSession(
        {bootstrap_.coordinator_address(), bootstrap_.token()}, callbacks);
    SendReady(0);
    int64_t step = 0;
    const int64_t steps = std::atoll(Env("FAKE_STEPS", "3").c_str());
    while (true) {
      int64_t generation;
      {
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(this, &FakeWorker::HasNews), absl::Seconds(60));
        if (exit_) return exit_code_;
        if (!drain_) {
          generation = generation_;
        } else {
          generation = -1;
        }
      }
      if (generation < 0) return Finish(step, true);
      SendProgress(generation, ++step, steps);
      if (step == 1) {
        std::printf("slot %d works\n", bootstrap_.assignment().slot());
        std::fflush(stdout);
        MaybeFail();
      }
      if (steps >= 0 && step >= steps) return Finish(step, false);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

 private:
  bool HasNews() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return exit_ || drain_ || generation_ > 0; }

  WorkerMessage Message() const {
    WorkerMessage message;
    message.set_job_id(bootstrap_.assignment().job_id());
    message.set_incarnation(bootstrap_.assignment().incarnation());
    return message;
  }
  WorkerMessage Hello() const {
    WorkerMessage message = Message();
    WorkerHello* hello = message.mutable_hello();
    hello->set_pid(::getpid());
    hello->set_host(bootstrap_.host());
    hello->set_slot(bootstrap_.assignment().slot());
    hello->set_node_id(bootstrap_.node_id());
    hello->set_protocol_version(1);
    return message;
  }
  void SendReady(int64_t highest) {
    WorkerMessage message = Message();
    WorkerReady* ready = message.mutable_ready();
    ready->set_highest_generation(highest);
    ready->set_plan_hash("plan");
    ready->set_device_hash("device");
    ready->mutable_address()->set_node_id(bootstrap_.node_id());
    session_->Send(message);
  }
  void SendProgress(int64_t generation, int64_t step, int64_t steps) {
    WorkerMessage message = Message();
    WorkerHeartbeat* heartbeat = message.mutable_heartbeat();
    heartbeat->set_generation(generation);
    heartbeat->set_progress_counter(step);
    Progress* progress = heartbeat->mutable_progress();
    progress->set_step(step);
    progress->set_total_steps(steps < 0 ? 1000000 : steps);
    progress->set_phase(TRAINING);
    session_->SendLatest(1, message);
  }
  int Finish(int64_t step, bool drained) {
    WorkerMessage message = Message();
    WorkerFinished* finished = message.mutable_finished();
    {
      absl::MutexLock lock(&mu_);
      finished->set_generation(generation_);
    }
    finished->set_steps(step);
    finished->set_train_seconds(0.5);
    finished->set_drained(drained);
    finished->set_model_path("model/model.safetensors");
    finished->set_model_sha256("abc");
    session_->Send(message);
    session_->Flush(absl::Seconds(5));
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&exit_), absl::Seconds(60));
    return exit_code_;
  }
  void MaybeFail() {
    const std::string fail = Env("FAKE_FAIL", "");
    const size_t colon = fail.find(':');
    if (colon == std::string::npos || std::atoi(fail.c_str()) != bootstrap_.assignment().slot()) {
      return;
    }
    std::fprintf(stderr, "slot %d is about to fail\n", bootstrap_.assignment().slot());
    const std::string how = fail.substr(colon + 1);
    if (how.starts_with("exit")) ::_exit(std::atoi(how.c_str() + 4));
    if (how.starts_with("signal")) ::kill(::getpid(), std::atoi(how.c_str() + 6));
  }
  void OnCommand(const WorkerCommand& command) {
    absl::MutexLock lock(&mu_);
    switch (command.command_case()) {
      case WorkerCommand::kGeneration:
        generation_ = command.generation().generation();
        break;
      case WorkerCommand::kAbort:
        generation_ = 0;
        SendReady(command.abort().generation());
        break;
      case WorkerCommand::kDrain:
        drain_ = Env("FAKE_STUBBORN", "").empty();
        break;
      case WorkerCommand::kExit:
        exit_ = true;
        exit_code_ = command.exit().code();
        break;
      case WorkerCommand::kRegroup:  // it takes no steps between which to regroup
      case WorkerCommand::kCheckpoint:
      case WorkerCommand::COMMAND_NOT_SET:
        break;
    }
  }

  const WorkerBootstrap bootstrap_;
  absl::Mutex mu_;
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  bool drain_ ABSL_GUARDED_BY(mu_) = false;
  bool exit_ ABSL_GUARDED_BY(mu_) = false;
  int exit_code_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<coordinator::WorkerSession> session_;
};

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  if (argc != 3 || std::string(argv[1]) != "--bootstrap-fd=3" ||
      std::string(argv[2]) != "--life-fd=4") {
    std::fprintf(stderr, "unexpected arguments\n");
    return 64;
  }
  if (!Env("FAKE_STUBBORN", "").empty()) ::signal(SIGTERM, SIG_IGN);
  auto life = LifePage::Open(UniqueFd(4));
  WorkerBootstrap bootstrap;
  if (!life.ok() || !bootstrap.ParseFromFileDescriptor(3) ||
      !(*life)->Take(bootstrap.life_slot()).ok()) {
    std::fprintf(stderr, "bad bootstrap\n");
    return 65;
  }
  return FakeWorker(bootstrap).Run();
}
