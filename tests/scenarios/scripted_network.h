// SPDX-License-Identifier: Apache-2.0
// The hosts of a script, who is reached at the coordinator's address, and the connections that the
// script cuts. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_NETWORK_H_
#define LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_NETWORK_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/machines/client_session.h"
#include "tests/machines/coordinator_process.h"
#include "tests/machines/host.h"
#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

class ScriptedNetwork {
 public:
  explicit ScriptedNetwork(simulation::Timeline* timeline) : timeline_(timeline) {}

  // Returns whether the command is one of the network; `name` is what it is about: a host, or a
  // peer that has connected.
  bool Do(const Command& command, const std::string& name);

  simulation::Host* HostOf(const std::string& name);
  // Who listens at the address; null: nobody.
  void Listen(std::shared_ptr<simulation::CoordinatorProcess> listener) {
    listener_ = std::move(listener);
  }
  const std::shared_ptr<simulation::CoordinatorProcess>& listener() const { return listener_; }
  // This peer finds another one there.
  void Lead(const std::string& peer, std::shared_ptr<simulation::CoordinatorProcess> to) {
    astray_[peer] = std::move(to);
  }

  // How the peer connects.
  template <typename Up, typename Down>
  simulation::Dial<Up, Down> DialFor(const std::string& peer) {
    return [this, peer](std::shared_ptr<simulation::Process> client,
                        typename simulation::Pipe<Down>::Ends ends)
               -> std::shared_ptr<simulation::Connection<Up, Down>> {
      simulation::CoordinatorProcess* const listener = Reached(peer, *client->host());
      if (listener == nullptr) return nullptr;
      auto connection = listener->Accept(std::move(client), std::move(ends));
      links_[peer] = {connection, BreakOf(*connection)};
      return connection;
    };
  }

 private:
  struct Link {
    std::weak_ptr<simulation::Breakable> connection;
    std::function<void(bool up, size_t after)> break_after;
  };

  template <typename Up, typename Down>
  static std::function<void(bool, size_t)> BreakOf(simulation::Connection<Up, Down>& connection) {
    return [weak = connection.weak_from_this()](bool up, size_t after) {
      const auto it = weak.lock();
      if (it == nullptr) return;
      const auto broken = [weak] {
        if (const auto lost = weak.lock()) lost->GiveUp();
      };
      up ? it->up->BreakAfter(after, broken) : it->down->BreakAfter(after, broken);
    };
  }
  simulation::CoordinatorProcess* Reached(const std::string& peer, const simulation::Host& from);
  Link& LinkOf(const std::string& peer);

  simulation::Timeline* const timeline_;
  std::map<std::string, std::unique_ptr<simulation::Host>> hosts_;
  std::shared_ptr<simulation::CoordinatorProcess> listener_;
  std::map<std::string, std::shared_ptr<simulation::CoordinatorProcess>> astray_;
  std::map<std::string, Link> links_;  // the newest of each peer
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_NETWORK_H_
