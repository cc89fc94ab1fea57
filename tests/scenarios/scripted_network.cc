// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/scripted_network.h"

#include "common/check.h"

namespace lockstep::coordinator {

bool ScriptedNetwork::Do(const Command& command, const std::string& name) {
  const std::string& verb = command.verb();
  const bool both = command.word(1).empty();
  if (verb == "cut" || verb == "mend") {
    simulation::Host& host = *HostOf(name);
    host.cut_in = verb == "cut" && (both || command.flag("in"));
    host.cut_out = verb == "cut" && (both || command.flag("out"));
    host.cut_since = timeline_->now();
  } else if (verb == "slow") {
    HostOf(name)->slow = ParseTime(command.word(1));
  } else if (verb == "lose") {
    const auto connection = LinkOf(name).connection.lock();
    if (connection == nullptr) return true;
    if (both || command.flag("here")) connection->LoseClient();
    if (both || command.flag("there")) connection->LoseServer();
  } else if (verb == "break") {
    LinkOf(name).break_after(command.flag("up"), static_cast<size_t>(command.number("after")));
  } else {
    return false;
  }
  return true;
}

simulation::Host* ScriptedNetwork::HostOf(const std::string& name) {
  std::unique_ptr<simulation::Host>& host = hosts_[name];
  if (host == nullptr) {
    host = std::make_unique<simulation::Host>();
    host->number = static_cast<int>(hosts_.size());
    host->name = name;
  }
  return host.get();
}

simulation::CoordinatorProcess* ScriptedNetwork::Reached(const std::string& peer,
                                                         const simulation::Host& from) {
  const auto astray = astray_.find(peer);
  const auto& reached = astray == astray_.end() ? listener_ : astray->second;
  if (reached == nullptr || !reached->alive()) return nullptr;
  const simulation::Host& there = *reached->host();
  return simulation::Passes(from, there) && simulation::Passes(there, from) ? reached.get()
                                                                            : nullptr;
}

ScriptedNetwork::Link& ScriptedNetwork::LinkOf(const std::string& peer) {
  const auto found = links_.find(peer);
  LS_CHECK(found != links_.end()) << peer << " has no connection";
  return found->second;
}

}  // namespace lockstep::coordinator
