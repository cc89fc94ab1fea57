// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/machine_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/protocol_version.h"
#include "tests/scenarios/core_world.h"
#include "tests/scenarios/effects_text.h"
#include "tests/scenarios/peer_messages.h"
#include "tests/scenarios/requests.h"

namespace lockstep::coordinator {
namespace {

using simulation::CoordinatorProcess;
using simulation::Process;

// What a command takes: connections come up, the journal is written, and who is told answers.
constexpr absl::Duration kCommand = absl::Milliseconds(20);

}  // namespace

MachineWorld::MachineWorld() : timeline_(simulation::Random::None()), network_(&timeline_) {}

MachineWorld::~MachineWorld() {
  for (const auto& [name, agent] : agents_) agent->Die(/*alone=*/false);
  for (const auto& [name, process] : coordinators_) process->Die();
}

std::vector<std::string> MachineWorld::Do(const Command& command) {
  lines_.clear();
  again_.clear();
  began_ = said_ = timeline_.now();
  tells_time_ = command.verb() == "tick";
  const bool known = command.verb() == "machines" || tells_time_ ||
                     network_.Do(command, PeerOf(command.word(0))) || DoCoordinators(command) ||
                     DoAgents(command) || DoWorkers(command) || DoQuestions(command);
  if (!known) return {absl::StrCat("unknown command '", command.verb(), "'")};
  Let(tells_time_ ? ParseTime(command.word(0)) : kCommand);
  for (const auto& [line, times] : again_) {
    lines_.push_back(absl::StrCat("again, ", times, " times: ", line));
  }
  if (lines_.empty()) lines_.push_back("nothing");
  return lines_;
}

void MachineWorld::Let(absl::Duration pass) {
  const absl::Time end = timeline_.now() + pass;
  while (timeline_.RunNext(end)) {
  }
}

void MachineWorld::Say(const std::string& line) {
  if (tells_time_ && std::find(lines_.begin(), lines_.end(), line) != lines_.end()) {
    ++again_[line];
    return;
  }
  const auto age = [this](absl::Time time) { return absl::Trunc(time - began_, kCommand); };
  if (tells_time_ && age(timeline_.now()) != age(said_)) {
    lines_.push_back(absl::StrCat("after ", absl::FormatDuration(age(timeline_.now()))));
    said_ = timeline_.now();
  }
  lines_.push_back(line);
}

// ---- coordinators ----

std::string MachineWorld::NameOf(const CoordinatorProcess& process) const {
  return absl::StrCat(clusters_.at(&process), "/", process.epoch());
}

CoordinatorProcess* MachineWorld::Asked(const Command& command) {
  if (command.has("to")) return coordinators_.at(command.text("to")).get();
  if (network_.listener() == nullptr) Say("there is no coordinator");
  return network_.listener().get();
}

bool MachineWorld::DoCoordinators(const Command& command) {
  const std::string& verb = command.verb();
  const std::string name = command.word(0);
  if (verb == "coordinator") {
    StartCoordinator(command);
  } else if (verb == "coordinator-ends") {
    EndCoordinator(name.empty() ? *network_.listener() : *coordinators_.at(name));
  } else if (verb == "coordinator-stops") {
    coordinators_.at(name)->Stop();
  } else if (verb == "coordinator-goes-on") {
    coordinators_.at(name)->Continue();
  } else if (verb == "reach") {
    network_.Lead(PeerOf(name), coordinators_.at(command.word(1)));
  } else if (verb == "journal") {
    ScriptedJournal& journal = journals_[name];
    if (command.flag("holds")) journal.Hold();
    if (command.flag("writes") && !journal.WriteOne()) Say("nothing is to be written");
    if (command.flag("full") || command.flag("room")) journal.disk.full = command.flag("full");
    if (command.flag("broken")) journal.disk.broken = true;
    if (command.flag("goes-on")) journal.GoOn();
  } else if (const std::optional<Event> request = ParseRequest(command)) {
    if (CoordinatorProcess* const asked = Asked(command)) Request(*asked, *request);
  } else {
    return false;
  }
  return true;
}

void MachineWorld::StartCoordinator(const Command& command) {
  const std::string cluster = command.text("cluster", "c");
  ScriptedJournal& journal = journals_[cluster];
  journal.disk.cluster = cluster;
  CoordinatorProcess::Settings settings;
  settings.limits.protocol_version = static_cast<int>(command.number("version", kProtocolVersion));
  const auto process = std::make_shared<CoordinatorProcess>(
      &timeline_, network_.HostOf("head"), &journal.disk, this, std::move(settings));
  clusters_[process.get()] = cluster;
  network_.Listen(process);
  const absl::Status begun = process->Begin();
  LS_CHECK(begun.ok()) << begun.ToString();
  coordinators_[NameOf(*process)] = process;
}

void MachineWorld::OnBegin(const CoordinatorProcess& process) {
  Say(absl::StrCat(NameOf(process), " begins"));
}

void MachineWorld::EndCoordinator(CoordinatorProcess& process) {
  Say(absl::StrCat(NameOf(process), " ends"));
  if (network_.listener().get() == &process) network_.Listen(nullptr);
  ScriptedJournal& journal = journals_[clusters_.at(&process)];
  if (journal.disk.Owns(process.epoch())) journal.disk.Crash(/*written=*/false);
  process.Die();
}

void MachineWorld::Write(CoordinatorProcess& process, std::vector<Row> rows) {
  Say(absl::StrCat(NameOf(process), " writes ",
                   absl::StrJoin(rows, " ", [](std::string* out, const Row& row) {
                     absl::StrAppend(out, row.erased ? "-" : "", row.key);
                   })));
  journals_[clusters_.at(&process)].Write(process, std::move(rows));
}

void MachineWorld::OnBroken(CoordinatorProcess& process) { EndCoordinator(process); }

void MachineWorld::OnHeard(const CoordinatorProcess& process, const AgentMessage& message,
                           const Process& client) {
  if (message.has_heartbeat()) return;
  const auto& agent = static_cast<const ScriptedAgent&>(client);
  Say(absl::StrCat(NameOf(process), " <- ", agent.name(), ": ", ToText(message)));
}

void MachineWorld::OnHeard(const CoordinatorProcess& process, const WorkerMessage& message,
                           const Process& /*client*/) {
  if (message.has_heartbeat()) return;
  Say(absl::StrCat(NameOf(process), " <- ", message.incarnation(), ": ", ToText(message)));
}

void MachineWorld::OnTold(const CoordinatorProcess& process, const Append& told) {
  if (told.event.has_progress()) return;
  Say(absl::StrCat(NameOf(process), " tells followers of ", told.job_id, ": ", ToText(told.event)));
}

void MachineWorld::Request(CoordinatorProcess& asked, const Event& event) {
  asked.Request(event, [this, name = NameOf(asked)](const Answer& answer) {
    Say(absl::StrCat(name, " answers: ", answer.status.ToString()));
  });
}

bool MachineWorld::DoQuestions(const Command& command) {
  if (command.verb() == "show") {
    Show();
    return true;
  }
  CoordinatorProcess* const asked = Asked(command);
  if (asked == nullptr) return true;
  if (command.verb() == "files") {
    const absl::Status status = asked->AskForFiles(command.word(0), command.word(1));
    if (!status.ok()) Say(absl::StrCat(NameOf(*asked), " refuses: ", status.ToString()));
    return true;
  }
  const auto lines = Answered(command, asked->state(), asked->Now());
  if (!lines) return false;
  for (const std::string& line : *lines) Say(line);
  return true;
}

void MachineWorld::Show() {
  if (network_.listener() != nullptr) {
    const CoordinatorProcess& asked = *network_.listener();
    for (const std::string& line : Overview(asked.state(), asked.Now())) Say(line);
  }
  for (const auto& [name, agent] : agents_) {
    if (agent->alive()) Say(agent->Standing());
    for (const auto& [incarnation, worker] : agent->workers()) {
      if (worker->alive()) Say(worker->Standing());
    }
  }
}

// ---- agents ----

ScriptedAgent& MachineWorld::AgentOf(const std::string& name) {
  const auto found = agents_.find(name);
  LS_CHECK(found != agents_.end()) << "no agent " << name;
  return *found->second;
}

bool MachineWorld::DoAgents(const Command& command) {
  const std::string& verb = command.verb();
  const std::string name = command.word(0);
  if (verb == "agent") {
    StartAgent(command);
  } else if (verb == "agent-dies") {
    AgentOf(name).Die(command.flag("alone"));
  } else if (verb == "agent-leaves") {
    AgentOf(name).Leave(command.flag("kill"), command.flag("save"));
  } else {
    return false;
  }
  return true;
}

void MachineWorld::StartAgent(const Command& command) {
  const std::string name = command.text("as", command.word(0));
  AgentHello hello = ParseHello(command);
  hello.set_host(name);
  hello.set_protocol_version(static_cast<int>(command.number("version", kProtocolVersion)));
  launcher::AgentMachineOptions options;
  options.leave_grace = command.duration("grace", absl::ZeroDuration());
  const auto say = [this](const std::string& line) { Say(line); };
  const auto make_worker = [this, say](simulation::Host* host,
                                       const launcher::agent_action::Start& start) {
    return std::make_shared<ScriptedWorker>(
        &timeline_, host, start, ++last_pid_,
        network_.DialFor<WorkerMessage, WorkerCommand>(start.assignment.incarnation()), say);
  };
  auto agent = std::make_shared<ScriptedAgent>(
      &timeline_, network_.HostOf(name), name, std::move(hello), std::move(options),
      network_.DialFor<AgentMessage, AgentCommand>(name), make_worker, say);
  const std::shared_ptr<ScriptedAgent> before = std::exchange(agents_[name], agent);
  if (before != nullptr && before->died_alone()) agent->Adopt(*before);
  agent->Start();
}

// ---- workers ----

ScriptedWorker& MachineWorld::WorkerOf(const std::string& word) {
  ScriptedWorker* const found = FindWorker(word);
  LS_CHECK(found != nullptr) << "no worker " << word;
  return *found;
}

std::string MachineWorld::PeerOf(const std::string& word) {
  const ScriptedWorker* const worker = FindWorker(word);
  return worker == nullptr ? word : worker->incarnation();
}

ScriptedWorker* MachineWorld::FindWorker(const std::string& word) {
  ScriptedWorker* newest = nullptr;
  for (const auto& [name, agent] : agents_) {
    for (const auto& [incarnation, worker] : agent->workers()) {
      if (incarnation == word) return worker.get();
      // Lives are of one digit in scripts.
      if (incarnation.rfind(word + ".", 0) != 0) continue;
      if (newest == nullptr || newest->incarnation() < incarnation) newest = worker.get();
    }
  }
  return newest;
}

bool MachineWorld::DoWorkers(const Command& command) {
  const std::string& verb = command.verb();
  if (verb == "up") {
    Up(command.word(0));
  } else if (verb == "exit") {
    WorkerOf(command.word(0))
        .End(static_cast<int>(command.number("code")), static_cast<int>(command.number("signal")));
  } else if (verb == "enter") {
    for (size_t i = 0; !command.word(i).empty(); ++i) WorkerOf(command.word(i)).Enter();
  } else if (verb == "stand") {
    WorkerOf(command.word(0)).Stand(!command.flag("again"));
  } else {
    WorkerMessage message;
    if (!ParseWorkerReport(command, message)) return false;
    WorkerOf(command.word(0)).Report(command, message);
  }
  return true;
}

void MachineWorld::Up(const std::string& job_id) {
  std::vector<std::string> workers;
  for (const auto& [name, agent] : agents_) {
    for (const auto& [incarnation, worker] : agent->workers()) {
      if (worker->alive() && worker->job_id() == job_id) workers.push_back(incarnation);
    }
  }
  std::sort(workers.begin(), workers.end());
  for (const std::string& worker : workers) DoWorkers(Command(absl::StrCat("ready ", worker)));
  Let(kCommand);
  for (const std::string& worker : workers) WorkerOf(worker).Enter();
}

std::unique_ptr<World> MakeWorld(const Command& first) {
  if (first.verb() == "machines") return std::make_unique<MachineWorld>();
  return std::make_unique<CoreWorld>();
}

}  // namespace lockstep::coordinator
