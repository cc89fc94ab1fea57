// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/world.h"

#include <algorithm>
#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/nodes.h"

namespace lockstep::simulation {
namespace {

constexpr absl::Duration kAskAgain = absl::Seconds(2);

// One way in which nothing gets through, or nobody is there to answer.
bool IsDead(const Breakable& connection) {
  const Process& client = connection.client();
  const Process& server = connection.server();
  return !Passes(*client.host(), *server.host()) || !Passes(*server.host(), *client.host()) ||
         client.stopped() || server.stopped();
}

// Returns whether the core said that it does not do what was asked; else what comes of a request
// that got no good answer is not known.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsNotFound(status);
}

}  // namespace

World::World(SimulationOptions given)
    : options(std::move(given)),
      timeline(Random(options.seed)),
      checker(this),
      queue_checker(this),
      began_(timeline.now()),
      faults_(this),
      drains_(this),
      users_(this),
      queue_users_(this) {
  for (int i = 0; i <= options.agents; ++i) {
    auto host = std::make_unique<Host>();
    host->number = i;
    host->name = absl::StrCat(i == 0 ? "head" : "node-", i == 0 ? "" : absl::StrCat(i));
    host->boot = timeline.random.Between(absl::ZeroDuration(), absl::Hours(900)) - absl::Hours(450);
    host->wall_offset = timeline.random.Between(-absl::Hours(1), absl::Hours(1));
    hosts.push_back(std::move(host));
  }
  agents.resize(static_cast<size_t>(options.agents) + 1);
  MakeJobs();
}

World::~World() {
  if (coordinator != nullptr) coordinator->Die();
  for (const auto& old : replaced) old->Die();
  for (const auto& agent : agents) {
    if (agent != nullptr) agent->Die();
  }
  groups_.clear();
}

void World::Say(const std::string& what) const {
  if (options.verbose) std::cout << absl::FormatDuration(Age()) << "  " << what << "\n";
}

void World::MakeJobs() {
  if (options.queue) {
    jobs = queue_users_.MakeJobs(faults_.HurtsWorkers() ? 100000 : 1);
    return;
  }
  Random& random = timeline.random;
  const int most = std::max(1, std::min(3, options.agents / 2));
  const int count =
      IsLarge() ? (options.agents + 3999) / 4000 : static_cast<int>(random.Between(1, most));
  int left = options.agents;
  for (int i = 0; i < count; ++i) {
    SimulatedJob job;
    job.name = absl::StrCat("job-", i);
    const int share = left / (count - i);
    // Some nodes stay free, for replacements.
    const int nodes =
        IsLarge() ? share : static_cast<int>(random.Between(1, std::max(1, share - 1)));
    left -= share;
    const int per_node = IsLarge() ? 1 : static_cast<int>(random.Between(1, options.slots));
    job.steps = IsLarge() ? 60 : random.Between(20, 150);
    job.step_time = random.Between(absl::Milliseconds(50), absl::Milliseconds(400));
    job.submitted = random.Between(absl::ZeroDuration(), absl::Seconds(5));
    JobSpec& spec = *job.request.mutable_spec();
    spec.set_name(job.name);
    spec.mutable_resources()->set_nodes(nodes);
    spec.mutable_resources()->set_nproc_per_node(per_node);
    spec.mutable_train()->set_shards(nodes * per_node * 2);
    if ((options.seed + static_cast<uint64_t>(i)) % 3 == 0) spec.mutable_train()->set_zero_stage(1);
    spec.mutable_checkpoint()->set_dir("saved");
    spec.mutable_checkpoint()->set_resume("auto");
    spec.mutable_failure_detection()->set_seconds(absl::ToInt64Seconds(options.detection));
    spec.mutable_restart()->set_max_restarts(
        faults_.HurtsWorkers() ? 100000 : static_cast<int>(random.Below(3)));
    if (random.Chance(0.3)) spec.mutable_elastic()->set_min_workers(1);
    job.request.set_request_id(absl::StrCat("request-", i));
    if (options.users) users_.Prepare(job.request);
    jobs.push_back(std::move(job));
  }
}

SimulatedJob& World::JobOf(const std::string& job_id) {
  const std::string name = job_id.substr(0, job_id.find("-try"));
  for (SimulatedJob& job : jobs) {
    if (job.name == name) return job;
  }
  LS_CHECK(false) << job_id;
  return jobs.front();
}

std::string World::Standing(const std::string& job_id) const {
  if (coordinator == nullptr || !coordinator->begun()) return "there is no coordinator";
  const auto job = coordinator->state().jobs.find(job_id);
  if (job == coordinator->state().jobs.end()) return "nobody knows it";
  std::string text = absl::StrCat(JobState_Name(job->second.state), ", ", job->second.reason);
  for (const auto& [id, node] : coordinator->state().nodes) {
    const absl::Time now = coordinator->Now();
    const std::string why = coordinator::WhyNoWork(node, now);
    const bool seen = coordinator::InSight(coordinator->state(), node, now);
    if (!seen || !why.empty()) {
      absl::StrAppend(&text, "\n    ", id, seen ? ": " : " is not in sight: ", why);
    }
  }
  for (const coordinator::Slot& slot : job->second.slots) {
    const std::string place = absl::StrCat(
        slot.wanted ? "" : ", given up", slot.lent ? ", lent" : "", slot.aside() ? ", aside" : "");
    if (slot.vacant()) {
      absl::StrAppend(&text, "\n    a vacant place", place);
      continue;
    }
    const coordinator::Worker& worker = *slot.worker;
    absl::StrAppend(&text, "\n    ", worker.incarnation, " on ", worker.node_id, ": phase ",
                    static_cast<int>(worker.phase), worker.session != 0 ? ", connected" : "",
                    worker.ready ? ", ready" : "", worker.finished ? ", finished" : "", place,
                    worker.verdict.empty() ? "" : absl::StrCat(", ", worker.verdict));
  }
  for (const coordinator::Worker& worker : job->second.former) {
    absl::StrAppend(&text, "\n    before: ", worker.incarnation, " on ", worker.node_id, ": ",
                    worker.verdict, worker.node_lost ? ", lost with its node" : "",
                    worker.gone() ? ", gone" : "",
                    worker.failed ? absl::StrCat(", failed: ", worker.failed->message()) : "");
  }
  return text;
}

std::string World::Run() {
  StartCoordinator();
  for (size_t i = 1; i < hosts.size(); ++i) {
    timeline.In(timeline.random.Between(absl::ZeroDuration(), absl::Seconds(2)),
                [this, i] { StartAgent(i); });
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    timeline.In(jobs[i].submitted, [this, i] { Submit(i); });
  }
  absl::Time end = timeline.now() + options.quiet;
  if (options.faults) end = faults_.Begin() + options.quiet;
  if (options.drains) drains_.Begin(end - options.quiet);
  if (options.users) users_.Begin(end - options.quiet);
  if (options.queue) queue_users_.Begin(end - options.quiet);
  while (checker.failure().empty() && !Over() && timeline.RunNext(end)) {
  }
  if (checker.failure().empty()) {
    // Whoever is still there leaves now.
    end = timeline.now() + absl::Seconds(40);
    while (checker.failure().empty() && timeline.RunNext(end)) {
    }
  }
  if (checker.failure().empty()) checker.AtEnd();
  return checker.failure();
}

bool World::Over() const {
  return !faults_.active() && coordinator != nullptr && coordinator->begun() &&
         coordinator->state().jobs.size() >= jobs.size() &&
         std::all_of(coordinator->state().jobs.begin(), coordinator->state().jobs.end(),
                     [](const auto& entry) { return entry.second.final(); }) &&
         std::all_of(jobs.begin(), jobs.end(),
                     [](const SimulatedJob& job) { return !job.accepted.empty(); });
}

void World::Submit(size_t index) {
  SimulatedJob& job = jobs[index];
  if (!job.accepted.empty()) return;
  timeline.In(kAskAgain, [this, index] { Submit(index); });
  if (coordinator == nullptr || !Passes(*hosts[0], *hosts[0])) return;
  if (!queue_users_.CompleteRequest(job)) return;
  // A request may come twice, and its answer be lost.
  for (int copies = timeline.random.Chance(0.1) ? 2 : 1; copies > 0; --copies) {
    const std::string id = absl::StrCat(job.name, "-try", ++job.tries);
    const bool lost = timeline.random.Chance(0.1);
    coordinator->After(timeline.random.Between(absl::Milliseconds(1), absl::Milliseconds(50)),
                       [this, index, id, lost, asked = coordinator.get()] {
                         asked->Request(coordinator::Submitted{id, jobs[index].request},
                                        [this, index, lost](const coordinator::Answer& answer) {
                                          if (!lost) OnAnswer(index, answer);
                                        });
                       });
  }
}

void World::OnAnswer(size_t index, const coordinator::Answer& answer) {
  // The one that it waits for has failed: then it does without.
  if (absl::IsFailedPrecondition(answer.status)) jobs[index].waits_for_success = false;
  if (!answer.status.ok()) return;  // asked again
  jobs[index].accepted = answer.submitted.job_id();
  checker.OnAccepted(jobs[index].accepted);
}

void World::NoteGeneration(const std::string& job_id,
                           std::shared_ptr<const Generation> generation) {
  auto& known = generations_[{job_id, generation->generation()}];
  if (known == nullptr) known = generation;
  if (known == generation) return;
  checker.CheckSameGeneration(job_id, *known, *generation);
  known = std::move(generation);  // the next member's is the same object
}

std::shared_ptr<Group> World::GroupOf(const std::string& job_id, int64_t generation) {
  auto& group = groups_[{job_id, generation}];
  if (group == nullptr) {
    group = std::make_shared<Group>(this, job_id, generations_.at({job_id, generation}));
  }
  return group;
}

void World::SaveCheckpoint(const std::string& job_id, int64_t step) {
  timeline.In(timeline.random.Between(absl::Milliseconds(100), absl::Milliseconds(500)),
              [this, job_id, step] {
                SimulatedJob& job = JobOf(job_id);
                job.checkpoint = std::max(job.checkpoint, step);
              });
}

void World::OnWorkerDeath(WorkerProcess& worker) {
  const auto& agent = agents[static_cast<size_t>(worker.host()->number)];
  if (agent != nullptr) agent->OnWorkerDeath(worker, 0);
}

CoordinatorProcess* World::Listener(const Process& client) {
  if (replaced.empty()) return coordinator.get();
  if (astray_.erase(client.host()) == 0 && !timeline.random.Chance(0.1)) return coordinator.get();
  faults_.Explain(*client.host(), kKeepalive);
  CheckConnectionsLater();
  return replaced.back().get();
}

Dial<AgentMessage, AgentCommand> World::DialAgent() {
  return [this](std::shared_ptr<Process> client,
                Pipe<AgentCommand>::Ends ends) -> std::shared_ptr<AgentConnection> {
    CoordinatorProcess* const listener = Listener(*client);
    if (listener == nullptr || !Passes(*client->host(), *hosts[0]) ||
        !Passes(*hosts[0], *client->host())) {
      return nullptr;
    }
    return listener->Accept(std::move(client), std::move(ends));
  };
}

Dial<WorkerMessage, WorkerCommand> World::DialWorker() {
  return [this](std::shared_ptr<Process> client,
                Pipe<WorkerCommand>::Ends ends) -> std::shared_ptr<WorkerConnection> {
    CoordinatorProcess* const listener = Listener(*client);
    if (listener == nullptr || !Passes(*client->host(), *hosts[0]) ||
        !Passes(*hosts[0], *client->host())) {
      return nullptr;
    }
    return listener->Accept(std::move(client), std::move(ends));
  };
}

void World::OnConnection(const std::shared_ptr<Breakable>& connection) {
  if (connections_.size() > 1000 && connections_.size() > 8 * agents.size()) {
    std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
  }
  connections_.push_back(connection);
}

void World::Ask(const coordinator::Event& event, int* asked,
                std::function<void(const coordinator::Answer&)> answer) {
  if (coordinator == nullptr || !coordinator->begun()) return;
  if (asked != nullptr) ++*asked;
  coordinator->After(absl::Milliseconds(1),
                     [process = coordinator.get(), event, asked, answer = std::move(answer)] {
                       process->Request(event, [asked, answer](const coordinator::Answer& given) {
                         if (asked != nullptr && IsRefusal(given.status)) --*asked;
                         if (answer != nullptr) answer(given);
                       });
                     });
}

void World::CheckConnectionsLater() {
  timeline.In(kKeepalive, [this] { GiveUpDeadConnections(); });
}

void World::GiveUpDeadConnections() {
  for (const auto& weak : connections_) {
    const std::shared_ptr<Breakable> connection = weak.lock();
    if (connection != nullptr && IsDead(*connection)) connection->GiveUp();
  }
}

void World::ResetConnections(const Host& host) {
  for (const auto& weak : connections_) {
    const std::shared_ptr<Breakable> connection = weak.lock();
    if (connection == nullptr) continue;
    const bool is_its =
        connection->client().host() == &host || connection->server().host() == &host;
    if (is_its) connection->GiveUp();
  }
}

void World::StartAgent(size_t index) {
  Host* const host = hosts[index].get();
  if (!host->up || (agents[index] != nullptr && agents[index]->alive())) return;
  const auto before = std::exchange(
      agents[index], std::make_shared<AgentProcess>(this, host, options.slots, ++agent_lives_));
  if (before != nullptr && before->died_alone()) agents[index]->Adopt(*before);
  agents[index]->Start();
}

void World::StartCoordinator() {
  if (coordinator != nullptr) return;
  coordinator = std::make_shared<CoordinatorProcess>(
      &timeline, hosts[0].get(), &disk, this,
      CoordinatorProcess::Settings{options.limits, options.measure});
  const absl::Status begun = coordinator->Begin();
  if (!begun.ok()) checker.Fail(begun.ToString());
}

void World::CrashCoordinator() {
  if (coordinator == nullptr) return;
  Say("the coordinator dies");
  disk.Crash(timeline.random.Chance(0.5));
  std::exchange(coordinator, nullptr)->Die();
  timeline.In(timeline.random.Between(absl::Milliseconds(50), absl::Seconds(10)), [this] {
    Say("a coordinator starts");
    StartCoordinator();
  });
}

std::shared_ptr<CoordinatorProcess> World::ReplaceCoordinator() {
  const std::shared_ptr<CoordinatorProcess> old = std::exchange(coordinator, nullptr);
  Say("another coordinator takes its place");
  disk.Crash(timeline.random.Chance(0.5));
  replaced.push_back(old);
  std::set<const Host*> late;
  for (const auto& host : hosts) {
    if (!timeline.random.Chance(0.2)) continue;
    late.insert(host.get());
    faults_.Explain(*host, kKeepalive);
  }
  for (const auto& weak : connections_) {
    const std::shared_ptr<Breakable> connection = weak.lock();
    if (connection == nullptr || &connection->server() != old.get()) continue;
    if (late.count(connection->client().host()) == 0) connection->GiveUp();
  }
  StartCoordinator();
  // With users alone, so that the histories of other seeds stay as they are.
  for (int times = options.users ? 3 : 0; times > 0; --times) {
    timeline.In(timeline.random.Between(absl::Seconds(1), absl::Seconds(15)),
                [this] { LeadAstray(); });
  }
  return old;
}

void World::LeadAstray() {
  if (replaced.empty() || coordinator == nullptr) return;
  for (const auto& weak : connections_) {
    const std::shared_ptr<Breakable> connection = weak.lock();
    if (connection == nullptr || &connection->server() != coordinator.get()) continue;
    if (!timeline.random.Chance(0.3)) continue;
    Host* const host = connection->client().host();
    faults_.Explain(*host, kKeepalive);
    astray_.insert(host);
    connection->GiveUp();
  }
}

void World::Write(CoordinatorProcess& process, std::vector<coordinator::Row> rows) {
  disk.Begin(process.epoch(), std::move(rows));
  // A stall that begins now holds up this write as well.
  const absl::Duration takes =
      timeline.random.Between(absl::Microseconds(100), absl::Milliseconds(5));
  process.After(takes, [this, &process] {
    const absl::Duration stalled =
        std::max(absl::ZeroDuration(), disk.stalled_until - timeline.now());
    process.After(stalled, [this, &process] {
      const bool lands = disk.broken && timeline.random.Chance(0.5);
      process.Written(disk.Finish(process.epoch(), lands));
    });
  });
}

void World::AfterStep(const CoordinatorProcess& process) {
  if (!IsCurrent(process)) return;
  checker.AfterStep(process);
  if (options.users) users_.AfterStep();
}

void World::OnHeard(const CoordinatorProcess& process, const AgentMessage& message,
                    const Process& client) {
  if (IsCurrent(process)) checker.OnHeard(message, client);
}

void World::OnHeard(const CoordinatorProcess& process, const WorkerMessage& message,
                    const Process& client) {
  if (IsCurrent(process)) checker.OnHeard(message, client);
}

WorkerCommand World::CommandFor(const Process& client, coordinator::ToWorker message) {
  if (message.generation == nullptr) return std::move(message.command);
  const auto& worker = static_cast<const WorkerProcess&>(client);
  NoteGeneration(worker.job_id(), message.generation);
  Generation& generation = *message.command.mutable_generation();
  generation.set_generation(message.generation->generation());
  generation.add_members()->set_incarnation(worker.incarnation());
  return std::move(message.command);
}

void World::OnBroken(CoordinatorProcess& process) {
  if (IsCurrent(process)) return CrashCoordinator();
  Say("the old coordinator ends");
  process.Die();
  std::erase_if(replaced, [&](const auto& old) { return old.get() == &process; });
}

}  // namespace lockstep::simulation
