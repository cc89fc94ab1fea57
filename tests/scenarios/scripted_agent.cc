// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/scripted_agent.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/farewell.h"
#include "tests/scenarios/effects_text.h"

namespace lockstep::coordinator {

ScriptedAgent::ScriptedAgent(simulation::Timeline* timeline, simulation::Host* host,
                             std::string name, AgentHello hello,
                             launcher::AgentMachineOptions options,
                             simulation::Dial<AgentMessage, AgentCommand> dial,
                             MakeWorker make_worker, Say say)
    : AgentShell(timeline, host, std::move(options), std::move(dial)),
      name_(std::move(name)),
      hello_(std::move(hello)),
      make_worker_(std::move(make_worker)),
      say_(std::move(say)) {}

void ScriptedAgent::Tell(const std::string& what) const { say_(absl::StrCat(name_, what)); }

AgentHello ScriptedAgent::Hello() const {
  AgentHello hello = machine().Hello();
  hello.MergeFrom(hello_);
  return hello;
}

void ScriptedAgent::Adopt(ScriptedAgent& before) {
  const AgentHello known = before.machine().Hello();
  deaths_ = before.deaths_;
  asked_ = before.asked_;
  for (const auto& [incarnation, worker] : before.workers_) {
    workers_[incarnation] = worker;
    Listen(*worker);
    launcher::agent_event::Adopted adopted;
    adopted.assignment = worker->assignment();
    adopted.cluster = known.cluster_id();
    adopted.epoch = {known.epoch(), known.epoch_proof()};
    adopted.pid = worker->pid();
    adopted.wanted_end = asked_.count(incarnation) != 0;
    Feed(adopted);
    if (!worker->alive()) OnWorkerEnd(*worker);
  }
}

void ScriptedAgent::Leave(bool kill, bool save) {
  Feed(launcher::agent_event::Stop{.kill = kill, .save = save});
}

void ScriptedAgent::Die(bool alone) {
  alone_ = alone;
  Process::Die();
  if (alone) return;
  for (const auto& [incarnation, worker] : workers_) worker->Die();
}

std::string ScriptedAgent::Standing() const {
  std::string text =
      absl::StrCat(name_, ": ", connected() ? "connected" : "not connected", ", has");
  for (const auto& [incarnation, worker] : workers_) {
    absl::StrAppend(&text, " ", incarnation, worker->alive() ? "" : "(ended)");
  }
  return workers_.empty() ? absl::StrCat(text, " nothing") : text;
}

void ScriptedAgent::OnCommand(const AgentCommand& command) {
  Tell(absl::StrCat(" <- ", SpeakerText(command), ": ", ToText(command)));
  AgentShell::OnCommand(command);
}

void ScriptedAgent::OnStart(const launcher::agent_action::Start& start) {
  const std::string& incarnation = start.assignment.incarnation();
  Tell(absl::StrCat(" starts ", incarnation));
  const std::shared_ptr<ScriptedWorker> worker = make_worker_(host(), start);
  workers_[incarnation] = worker;
  Listen(*worker);
  // Its supervisor starts it, whatever becomes of the agent.
  worker->After(absl::Milliseconds(1), [this, worker, weak = weak_from_this()] {
    if (const auto self = weak.lock(); self != nullptr && alive()) {
      Feed(launcher::agent_event::Started{worker->incarnation(), worker->pid()});
    }
    worker->Start();
  });
}

void ScriptedAgent::OnTerminate(const launcher::agent_action::Terminate& terminate) {
  Tell(absl::StrCat(" ends ", terminate.incarnation));
  EndSoon(terminate.incarnation, 128 + SIGTERM, 0);
}

void ScriptedAgent::OnSaveAndLeave(const launcher::agent_action::SaveAndLeave& leave) {
  Tell(absl::StrCat(" has ", leave.incarnation, " save and leave"));
  EndSoon(leave.incarnation, kFarewellSaved, 0);
}

void ScriptedAgent::OnKill(const launcher::agent_action::Kill& kill) {
  Tell(absl::StrCat(" kills ", kill.incarnation));
  EndSoon(kill.incarnation, 0, SIGKILL);
}

void ScriptedAgent::EndSoon(const std::string& incarnation, int exit_code, int signal) {
  asked_.insert(incarnation);
  const auto found = workers_.find(incarnation);
  if (found == workers_.end()) return;
  found->second->After(absl::Milliseconds(1), [worker = found->second.get(), exit_code, signal] {
    worker->End(exit_code, signal);
  });
}

void ScriptedAgent::OnForget(const launcher::agent_action::Forget& forget) {
  Tell(absl::StrCat(" forgets ", forget.incarnation));
  workers_.erase(forget.incarnation);
}

void ScriptedAgent::OnSendFiles(const launcher::agent_action::SendFiles& files) {
  Tell(absl::StrCat(" sends files of ", files.wanted.job_id()));
}

void ScriptedAgent::OnReport(const launcher::agent_action::Report& report) {
  Tell(report.connected ? " is connected" : absl::StrCat(" is not connected: ", report.reason));
}

void ScriptedAgent::OnWarn(const launcher::agent_action::Warn& warning) {
  Tell(absl::StrCat(" warns: ", warning.text));
}

void ScriptedAgent::Listen(ScriptedWorker& worker) {
  worker.OnEnd([this](ScriptedWorker& ended) {
    if (alive()) OnWorkerEnd(ended);
  });
}

void ScriptedAgent::OnWorkerEnd(ScriptedWorker& worker) {
  const int64_t order =
      deaths_.emplace(worker.incarnation(), static_cast<int64_t>(deaths_.size()) + 1).first->second;
  After(absl::Microseconds(200), [this, incarnation = worker.incarnation(), order] {
    Feed(launcher::agent_event::Died{incarnation, order});
  });
  launcher::agent_event::Exited exited;
  exited.incarnation = worker.incarnation();
  exited.order = order;
  exited.signal = worker.signal();
  exited.exit_code = worker.exit_code();
  After(absl::Milliseconds(1), [this, exited] { Feed(exited); });
}

}  // namespace lockstep::coordinator
