// SPDX-License-Identifier: Apache-2.0
// The machines of the control plane under a script: coordinators with their outbox and a journal,
// agents and workers with theirs, and the sessions and streams between them (tests/machines), in
// virtual time without chance. A script that begins with `machines` is about these.
//
// What users ask for are the commands of requests.h. What workers say are those of peer_messages.h
// (ready, peer-lost, checkpoint, finished, failed, eval); agents say themselves what there is to
// say, heartbeats are sent and not shown. Further there are
//
//   machines                         must be first
//   coordinator [cluster=c] [version=2]  one starts on that cluster's journal, and has the address;
//                                    a coordinator is called c/1, by cluster and epoch
//   coordinator-ends [c/1]           it dies; without a name: the one that has the address
//   coordinator-stops c/1            coordinator-goes-on c/1         SIGSTOP and SIGCONT
//   journal c holds                  writes do not come back,   journal c writes     one does,
//   journal c goes-on                and all that follow do.
//   journal c full | room | broken   what a write finds
//   agent NODE [as=NAME] [life=1] [slots=4] [version=2] [grace=0s]   it starts
//   agent-dies NAME [alone]          with its processes or without them
//   agent-leaves NAME [kill] [save]
//   exit W [code=0] [signal=0]       the process ends
//   enter W..                        its main thread looks for a generation
//   stand W.. [again]                it moves no more, and its heartbeats go on
//   up J                             its workers are ready and enter their generation
//   cut HOST [in] [out]              nothing gets through, and nobody is told; mend HOST
//   slow HOST 3s                     what is sent from now on takes so much longer
//   lose PEER [here] [there]         both sides, or its own or the other one, give up its
//                                    connection
//   break PEER [up] after=1          so many more messages arrive, then the connection breaks:
//                                    messages to it, or with `up` those of it
//   reach PEER c/1                   from now on it finds that coordinator at the address
//   files J NODE                     a user asks for them; this and users' requests with to=c/1 go
//   to
//                                    that coordinator
//   tick 5s                          time passes; what is said again and again is in the text once,
//                                    and how often it was said
//   show
//
// Each other command takes 20 ms, in which most of what follows from it happens. A host is called
// as the agent that is on it, coordinators are on `head`. W is "j.2", or "j.2.1" for an earlier
// life; a PEER is an agent or a worker. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_MACHINE_WORLD_H_
#define LOCKSTEP_TESTS_SCENARIOS_MACHINE_WORLD_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/machines/coordinator_process.h"
#include "tests/machines/timeline.h"
#include "tests/scenarios/script.h"
#include "tests/scenarios/scripted_agent.h"
#include "tests/scenarios/scripted_journal.h"
#include "tests/scenarios/scripted_network.h"
#include "tests/scenarios/scripted_worker.h"
#include "tests/scenarios/world.h"

namespace lockstep::coordinator {

class MachineWorld : public World, public simulation::Surroundings {
 public:
  MachineWorld();
  ~MachineWorld() override;

  std::vector<std::string> Do(const Command& command) override;

 private:
  // ---- what coordinators have around them ----
  void Write(simulation::CoordinatorProcess& process, std::vector<Row> rows) override;
  void OnBroken(simulation::CoordinatorProcess& process) override;
  void OnBegin(const simulation::CoordinatorProcess& process) override;
  void OnHeard(const simulation::CoordinatorProcess& process, const AgentMessage& message,
               const simulation::Process& client) override;
  void OnHeard(const simulation::CoordinatorProcess& process, const WorkerMessage& message,
               const simulation::Process& client) override;
  void OnTold(const simulation::CoordinatorProcess& process, const Append& told) override;

  bool DoCoordinators(const Command& command);
  bool DoAgents(const Command& command);
  bool DoWorkers(const Command& command);
  bool DoQuestions(const Command& command);
  void StartCoordinator(const Command& command);
  void EndCoordinator(simulation::CoordinatorProcess& process);
  void StartAgent(const Command& command);
  void Request(simulation::CoordinatorProcess& asked, const Event& event);
  void Up(const std::string& job_id);
  void Show();
  void Let(absl::Duration pass);
  void Say(const std::string& line);
  // Whom a user's command is for. Null and a line of text: nobody is there.
  simulation::CoordinatorProcess* Asked(const Command& command);
  ScriptedAgent& AgentOf(const std::string& name);
  // Null: there is none.
  ScriptedWorker* FindWorker(const std::string& word);
  ScriptedWorker& WorkerOf(const std::string& word);
  // An agent's name, or a worker's incarnation.
  std::string PeerOf(const std::string& word);
  // Its journal's cluster and its epoch.
  std::string NameOf(const simulation::CoordinatorProcess& process) const;

  simulation::Timeline timeline_;
  std::map<std::string, ScriptedJournal> journals_;  // by cluster
  // By name; those that have ended among them.
  std::map<std::string, std::shared_ptr<simulation::CoordinatorProcess>> coordinators_;
  std::map<const simulation::CoordinatorProcess*, std::string> clusters_;
  ScriptedNetwork network_;
  std::map<std::string, std::shared_ptr<ScriptedAgent>> agents_;
  int64_t last_pid_ = 100;
  std::vector<std::string> lines_;
  std::map<std::string, int> again_;  // of a tick: lines that are there already, and how often
  absl::Time began_;                  // the command
  absl::Time said_;                   // the time that the text says
  bool tells_time_ = false;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_MACHINE_WORLD_H_
