// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/faults.h"

#include <signal.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/core/context.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

// From the end of a fault until everybody has found back: a connection's keepalive, a reconnect,
// the end of a silence, a start.
constexpr absl::Duration kAftermath = absl::Seconds(60);
// Until its processes are heard of again: a keepalive and a reconnect.
constexpr absl::Duration kBackInSight = absl::Seconds(20);
// A host that is cut off for so long is not found silent, and when all are, nobody is given up, as
// a lost node takes longer than that and the way back.
constexpr absl::Duration kUnnoticed = absl::Seconds(3);
constexpr absl::Duration kWaitedFor = absl::Seconds(12);

}  // namespace

Faults::Faults(World* world) : world_(world), ends_(world->options.seed * 49979687 + 1) {
  std::vector<Kind> all = {&Faults::KillWorker,
                           &Faults::StopWorker,
                           &Faults::KillAgent,
                           &Faults::PowerOff,
                           &Faults::Cut,
                           &Faults::CutOneWay,
                           &Faults::Slow,
                           &Faults::KillCoordinator,
                           &Faults::StopCoordinator,
                           &Faults::StallDisk,
                           &Faults::FillDisk,
                           &Faults::BreakDisk,
                           &Faults::JumpWall,
                           &Faults::Suspend,
                           &Faults::CutCoordinator,
                           &Faults::SwizzleClog};
  Random& random = world_->timeline.random;
  for (int64_t count = random.Between(1, 5); count > 0; --count) {
    const auto picked = all.begin() + random.Below(static_cast<int64_t>(all.size()));
    kinds_.push_back(*picked);
    all.erase(picked);
  }
  every_ = random.Between(absl::Milliseconds(500), absl::Seconds(15));
  longest_ = world_->IsLarge() ? absl::Seconds(15) : absl::Seconds(60);
  // Not one of those that are picked, so that the histories of other seeds stay as they are.
  if (world_->options.seed % 7 == 0) kinds_.push_back(&Faults::ReplaceCoordinator);
  if (world_->options.seed % 23 < 4) kinds_.push_back(&Faults::Leave);
  const uint64_t kind = world_->options.seed % 23;
  if (kind > 20) kinds_.push_back(&Faults::ResetLink);
  kills_early_ = !world_->IsLarge() && (kind == 10 || kind == 11 || kind == 13 || kind == 16);
}

bool Faults::HurtsWorkers() const {
  return kills_early_ || std::any_of(kinds_.begin(), kinds_.end(), [](Kind kind) {
           return kind == &Faults::KillWorker || kind == &Faults::StopWorker;
         });
}

absl::Time Faults::Begin() {
  active_ = true;
  until_ = world_->timeline.now() +
           world_->timeline.random.Between(
               absl::Seconds(10), world_->IsLarge() ? absl::Seconds(25) : absl::Seconds(80));
  world_->timeline.In(world_->timeline.random.Between(absl::ZeroDuration(), absl::Seconds(5)),
                      [this] { Next(); });
  const absl::Time last = until_ + longest_ + absl::Seconds(10);
  world_->timeline.At(last, [this] { MendAll(); });
  return last;
}

void Faults::Next() {
  if (world_->timeline.now() >= until_) return;
  const Kind kind = kinds_[static_cast<size_t>(
      world_->timeline.random.Below(static_cast<int64_t>(kinds_.size())))];
  (this->*kind)();
  world_->timeline.In(world_->timeline.random.Between(every_ / 2, every_), [this] { Next(); });
}

void Faults::MendAll() {
  active_ = false;
  world_->Say("all is mended");
  world_->disk.full = false;
  world_->StartCoordinator();
  for (size_t i = 1; i < world_->hosts.size(); ++i) world_->StartAgent(i);
}

Host& Faults::SomeNode() {
  return *world_->hosts[static_cast<size_t>(
      world_->timeline.random.Between(1, world_->options.agents))];
}

absl::Duration Faults::Span(absl::Duration least, absl::Duration most) {
  // Short ones are as likely as long ones.
  Random& random = world_->timeline.random;
  most = std::min(most, longest_);
  absl::Duration span = least;
  while (span < most && random.Chance(0.75)) span *= 2;
  return std::min(most, random.Between(span / 2, span));
}

void Faults::Explain(Host& host, absl::Duration lasts) {
  const absl::Time now = world_->timeline.now();
  host.Disturb(now + lasts + kAftermath);
  host.impaired = std::max(host.impaired, now + lasts + kBackInSight);
  host.given_up = std::max(host.given_up, now + lasts + kBackInSight);
  ExplainJobsOn(host, lasts);
}

void Faults::ExplainCut(Host& host, absl::Duration lasts, absl::Duration harmless) {
  const bool alone = world_->timeline.now() > host.impaired;
  const absl::Time given_up = host.given_up;
  Explain(host, lasts);
  if (alone && lasts <= harmless) host.given_up = given_up;
}

void Faults::ExplainJobsOn(const Host& host, absl::Duration lasts) {
  const absl::Time until = world_->timeline.now() + lasts + kAftermath;
  const auto& agent = world_->agents[static_cast<size_t>(host.number)];
  if (agent == nullptr) return;
  for (const auto& [incarnation, worker] : agent->workers()) {
    SimulatedJob& job = world_->JobOf(worker->job_id());
    job.disturbed = std::max(job.disturbed, until);
  }
}

// Explains what becomes of the worker's job, and what is found of the worker itself.
void Faults::ExplainWorker(WorkerProcess& worker, absl::Duration lasts) {
  const absl::Time now = world_->timeline.now();
  SimulatedJob& job = world_->JobOf(worker.job_id());
  job.disturbed = std::max(job.disturbed, now + lasts + kAftermath);
  worker.NoteImpaired(now + lasts + kBackInSight);
}

void Faults::ExplainAll(absl::Duration lasts) {
  for (const auto& host : world_->hosts) ExplainCut(*host, lasts, kWaitedFor);
  for (SimulatedJob& job : world_->jobs) {
    job.disturbed = std::max(job.disturbed, world_->timeline.now() + lasts + kAftermath);
  }
}

void Faults::KillWorker() {
  const Host& host = SomeNode();
  const auto agent = world_->agents[static_cast<size_t>(host.number)];
  if (agent == nullptr || agent->workers().empty()) return;
  auto it = agent->workers().begin();
  std::advance(it, world_->timeline.random.Below(static_cast<int64_t>(agent->workers().size())));
  const std::shared_ptr<WorkerProcess> worker = it->second;
  Kill(worker);
}

void Faults::Kill(const std::shared_ptr<WorkerProcess>& worker) {
  const auto& agent = world_->agents[static_cast<size_t>(worker->host()->number)];
  if (agent == nullptr || !worker->alive()) return;
  ExplainWorker(*worker, absl::ZeroDuration());
  ++world_->JobOf(worker->job_id()).own_failures;
  world_->Say(absl::StrCat("kills ", worker->incarnation()));
  worker->Die();
  agent->OnWorkerDeath(*worker, SIGKILL);
}

// Its host loses packets meanwhile: that it died and that its connection ended are heard one long
// after the other.
void Faults::OnFirstReady(const std::shared_ptr<WorkerProcess>& worker) {
  constexpr int kMost = 6;
  if (!kills_early_ || !active_ || early_kills_ >= kMost || !ends_.Chance(0.15)) return;
  ++early_kills_;
  world_->timeline.In(ends_.Between(absl::ZeroDuration(), absl::Milliseconds(800)), [this, worker] {
    Host& host = *worker->host();
    constexpr absl::Duration kLasts = absl::Seconds(1);
    Explain(host, kLasts);
    host.loss = 0.5;
    world_->timeline.In(kLasts, [&host] { host.loss = 0; });
    Kill(worker);
  });
}

void Faults::OnLastStep(const std::vector<std::shared_ptr<WorkerProcess>>& members) {
  const bool kills = std::find(kinds_.begin(), kinds_.end(), &Faults::KillWorker) != kinds_.end();
  if (!active_ || !kills || members.size() < 2 || !ends_.Chance(0.5)) return;
  const auto other = ends_.Between(1, static_cast<int64_t>(members.size()) - 1);
  const auto later = [this](std::shared_ptr<WorkerProcess> worker, absl::Duration delay) {
    world_->timeline.In(delay, [this, worker = std::move(worker)] { Kill(worker); });
  };
  // The others say at once that they have finished.
  later(members[static_cast<size_t>(other)],
        ends_.Between(absl::Milliseconds(50), absl::Milliseconds(100)));
  later(members[0], ends_.Between(absl::Milliseconds(100), absl::Milliseconds(500)));
}

// Whoever cannot speak to its coordinator, or keeps nobody for long, ends its workers as they are.
bool Faults::LeavesWell(const AgentProcess& agent) const {
  constexpr absl::Duration kEnough = absl::Seconds(15);
  const bool others = std::any_of(
      world_->agents.begin(), world_->agents.end(), [&](const std::shared_ptr<AgentProcess>& each) {
        return each != nullptr && each.get() != &agent && each->alive() && each->leaves();
      });
  if (others || !agent.connected() || agent.grace() < kEnough) return false;
  if (!world_->checker.IsSteadySince(world_->timeline.now())) return false;
  const auto& jobs = world_->coordinator->state().jobs;
  return std::all_of(agent.workers().begin(), agent.workers().end(), [&](const auto& entry) {
    const auto job = jobs.find(entry.second->job_id());
    return job == jobs.end() || job->second.final() ||
           (job->second.state == RUNNING && coordinator::HasActiveGeneration(job->second));
  });
}

void Faults::Leave() {
  const Host& host = SomeNode();
  const auto agent = world_->agents[static_cast<size_t>(host.number)];
  if (agent == nullptr || !agent->alive() || agent->stopped() || agent->leaves()) return;
  const absl::Duration away = Span(absl::Milliseconds(200), absl::Seconds(60));
  const bool well = LeavesWell(*agent);
  world_->Say(absl::StrCat("the agent of ", host.name, " leaves",
                           well ? "" : ", and may cost some their steps", " within ",
                           absl::FormatDuration(agent->grace())));
  if (!well) ExplainJobsOn(host, agent->grace());
  const absl::Time began = world_->timeline.now();
  world_->timeline.In(agent->grace(), [this, &host, began] {
    if (!world_->checker.IsSteadySince(began)) ExplainJobsOn(host, absl::ZeroDuration());
  });
  agent->Leave(away);
}

void Faults::StopWorker() {
  const Host& host = SomeNode();
  const auto agent = world_->agents[static_cast<size_t>(host.number)];
  if (agent == nullptr || agent->workers().empty()) return;
  const std::shared_ptr<WorkerProcess> worker = agent->workers().begin()->second;
  if (!worker->alive()) return;
  const absl::Duration span = Span(absl::Milliseconds(500), absl::Seconds(60));
  ExplainWorker(*worker, span);
  world_->JobOf(worker->job_id()).own_failures += 2;
  world_->Say(absl::StrCat("stops ", worker->incarnation(), " for ", absl::FormatDuration(span)));
  worker->Stop();
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [worker] { worker->Continue(); });
}

void Faults::KillAgent() {
  const Host& host = SomeNode();
  const size_t index = static_cast<size_t>(host.number);
  const auto agent = world_->agents[index];
  if (agent == nullptr || !agent->alive()) return;
  const absl::Duration away = Span(absl::Milliseconds(200), absl::Seconds(60));
  Explain(*world_->hosts[index], away);
  const bool alone = world_->timeline.random.Chance(0.5);
  world_->Say(absl::StrCat("the agent of ", host.name, " dies", alone ? " alone" : "", " for ",
                           absl::FormatDuration(away)));
  alone ? agent->DieAlone() : agent->Die();
  world_->timeline.In(away, [this, index] { world_->StartAgent(index); });
}

void Faults::PowerOff() {
  Host& host = SomeNode();
  if (!host.up) return;
  const size_t index = static_cast<size_t>(host.number);
  const absl::Duration away = Span(absl::Seconds(1), absl::Seconds(60));
  Explain(host, away);
  world_->Say(absl::StrCat(host.name, " is off for ", absl::FormatDuration(away)));
  host.up = false;
  if (world_->agents[index] != nullptr) {
    world_->agents[index]->Die();
    world_->agents[index]->EndWorkers();
  }
  world_->CheckConnectionsLater();
  world_->timeline.In(away, [this, index] {
    world_->hosts[index]->up = true;
    world_->StartAgent(index);
  });
}

void Faults::Cut() {
  Host& host = SomeNode();
  if (host.cut_in || host.cut_out) return;
  const absl::Duration span = Span(absl::Milliseconds(200), absl::Seconds(60));
  ExplainCut(host, span, kUnnoticed);
  world_->Say(absl::StrCat(host.name, " is cut off for ", absl::FormatDuration(span)));
  host.cut_in = host.cut_out = true;
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [&host] { host.cut_in = host.cut_out = false; });
}

// Not for so long that anybody is lost, and with the connections over it.
void Faults::ResetLink() {
  Random& random = world_->timeline.random;
  const bool all = random.Chance(0.3);
  Host& host = all ? *world_->hosts[0] : SomeNode();
  if (host.cut_in || host.cut_out) return;
  const absl::Duration span = random.Between(absl::Milliseconds(3500), absl::Seconds(5));
  all ? ExplainAll(span) : ExplainCut(host, span, kUnnoticed);
  world_->Say(
      absl::StrCat("the link of ", host.name, " is reset within ", absl::FormatDuration(span)));
  host.cut_in = host.cut_out = true;
  world_->timeline.In(random.Between(absl::Milliseconds(1500), absl::Seconds(3)),
                      [this, &host] { world_->ResetConnections(host); });
  world_->timeline.In(span, [&host] { host.cut_in = host.cut_out = false; });
}

void Faults::CutOneWay() {
  Host& host = SomeNode();
  if (host.cut_in || host.cut_out) return;
  const absl::Duration span = Span(absl::Milliseconds(200), absl::Seconds(60));
  const bool in = world_->timeline.random.Chance(0.5);
  ExplainCut(host, span, kUnnoticed);
  world_->Say(absl::StrCat(host.name, in ? " hears nothing for " : " is not heard for ",
                           absl::FormatDuration(span)));
  (in ? host.cut_in : host.cut_out) = true;
  host.cut_since = world_->timeline.now();
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [&host, in] { (in ? host.cut_in : host.cut_out) = false; });
}

void Faults::Slow() {
  Host& host = SomeNode();
  const absl::Duration span = Span(absl::Seconds(1), absl::Seconds(60));
  Explain(host, span);
  host.slow = world_->timeline.random.Between(absl::Milliseconds(1), absl::Seconds(1));
  host.loss = world_->timeline.random.Chance(0.5) ? 0.2 : 0;
  world_->Say(absl::StrCat(host.name, " is slow by ", absl::FormatDuration(host.slow)));
  world_->timeline.In(span, [&host] {
    host.slow = absl::ZeroDuration();
    host.loss = 0;
  });
}

void Faults::KillCoordinator() { world_->CrashCoordinator(); }  // and another one starts

void Faults::StopCoordinator() {
  const auto coordinator = world_->coordinator;
  if (coordinator == nullptr || coordinator->stopped()) return;
  const absl::Duration span = Span(absl::Milliseconds(500), absl::Seconds(60));
  world_->Say(absl::StrCat("the coordinator stops for ", absl::FormatDuration(span)));
  coordinator->Stop();
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [this, coordinator] {
    world_->checker.OnContinue();
    coordinator->Continue();
  });
}

// Two at once: it is stopped, another one takes its place, and it wakes.
void Faults::ReplaceCoordinator() {
  const auto coordinator = world_->coordinator;
  if (coordinator == nullptr || coordinator->stopped() || !coordinator->begun()) return;
  const absl::Duration until_other = Span(absl::Milliseconds(100), absl::Seconds(10));
  const absl::Duration until_wakes = Span(absl::Milliseconds(100), absl::Seconds(50));
  world_->Say(absl::StrCat("the coordinator stops, is replaced after ",
                           absl::FormatDuration(until_other), " and wakes ",
                           absl::FormatDuration(until_wakes), " later"));
  coordinator->Stop();
  world_->CheckConnectionsLater();
  world_->timeline.In(until_other, [this, coordinator, until_wakes] {
    if (world_->coordinator == coordinator) world_->ReplaceCoordinator();
    world_->timeline.In(until_wakes, [this, coordinator] {
      if (!coordinator->alive()) return;
      world_->Say("the old coordinator wakes");
      if (world_->IsCurrent(*coordinator)) world_->checker.OnContinue();
      coordinator->Continue();
    });
  });
}

void Faults::StallDisk() {
  const absl::Duration span = Span(absl::Milliseconds(100), absl::Seconds(60));
  world_->Say(absl::StrCat("the disk stalls for ", absl::FormatDuration(span)));
  world_->disk.stalled_until = world_->timeline.now() + span;
}

void Faults::FillDisk() {
  const absl::Duration span = Span(absl::Milliseconds(100), absl::Seconds(30));
  world_->Say(absl::StrCat("the disk is full for ", absl::FormatDuration(span)));
  world_->disk.full = true;
  full_until_ = std::max(full_until_, world_->timeline.now() + span);
  world_->timeline.In(span, [this] {
    if (world_->timeline.now() >= full_until_) world_->disk.full = false;
  });
  // Whoever dies meanwhile costs the others their generation, and they cannot be told.
  const bool is_long = span > world_->options.detection;
  if (!is_long || !HurtsWorkers() || !ends_.Chance(0.5)) return;
  world_->timeline.In(ends_.Between(absl::ZeroDuration(), span), [this] { KillWorker(); });
}

void Faults::BreakDisk() {
  world_->Say("the disk fails a write");
  world_->disk.broken = true;
}

// Nobody who waits looks at the wall.
void Faults::JumpWall() {
  const auto& hosts = world_->hosts;
  Host& host = *hosts[static_cast<size_t>(
      world_->timeline.random.Below(static_cast<int64_t>(hosts.size())))];
  host.wall_offset += world_->timeline.random.Between(-absl::Hours(2), absl::Hours(2));
}

void Faults::Suspend() {
  Host& host = SomeNode();
  if (host.suspended || !host.up) return;
  const absl::Duration span = Span(absl::Seconds(1), absl::Seconds(60));
  Explain(host, span);
  world_->Say(absl::StrCat(host.name, " sleeps for ", absl::FormatDuration(span)));
  host.suspended = true;
  host.slept_since = world_->timeline.now();
  std::vector<std::shared_ptr<Process>> asleep;
  if (const auto& agent = world_->agents[static_cast<size_t>(host.number)]; agent != nullptr) {
    asleep.push_back(agent);
    for (const auto& [incarnation, worker] : agent->workers()) asleep.push_back(worker);
  }
  for (const auto& process : asleep) process->Stop();
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [this, &host, asleep] {
    host.suspended = false;
    host.slept += world_->timeline.now() - host.slept_since;
    for (const auto& process : asleep) process->Continue();
  });
}

void Faults::CutCoordinator() {
  Host& host = *world_->hosts[0];
  if (host.cut_in || host.cut_out) return;
  const absl::Duration span = Span(absl::Milliseconds(200), absl::Seconds(60));
  ExplainAll(span);
  world_->Say(absl::StrCat("the coordinator is cut off for ", absl::FormatDuration(span)));
  host.cut_in = host.cut_out = true;
  world_->CheckConnectionsLater();
  world_->timeline.In(span, [&host] { host.cut_in = host.cut_out = false; });
}

// Links go one by one, and come back in another order.
void Faults::SwizzleClog() {
  std::vector<Host*> some;
  for (int64_t count = world_->timeline.random.Between(2, 5); count > 0; --count) {
    some.push_back(&SomeNode());
  }
  const absl::Duration span = Span(absl::Seconds(1), absl::Seconds(30));
  for (Host* host : some) {
    ExplainCut(*host, span, kUnnoticed);
    const absl::Duration first = world_->timeline.random.Between(absl::ZeroDuration(), span / 2);
    const absl::Duration last = world_->timeline.random.Between(span / 2, span);
    world_->Say(absl::StrCat(host->name, " is clogged in ", absl::FormatDuration(first), " until ",
                             absl::FormatDuration(last), " from now"));
    world_->timeline.In(first, [this, host] {
      host->cut_in = host->cut_out = true;
      world_->CheckConnectionsLater();
    });
    world_->timeline.In(last, [host] { host->cut_in = host->cut_out = false; });
  }
}

}  // namespace lockstep::simulation
