// SPDX-License-Identifier: Apache-2.0
#include "coordinator/candidate.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "coordinator/client/default_address.h"
#include "coordinator/findable.h"
#include "coordinator/leader_check.h"
#include "coordinator/serve.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/cluster_files.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/server.h"
#include "coordinator/service/standby_server.h"
#include "coordinator/service/wall_clock.h"
#include "coordinator/store/etcd/client.h"
#include "coordinator/store/etcd/election.h"
#include "coordinator/store/etcd/etcd_store.h"

namespace lockstep::coordinator {
namespace {

// After a life that came to nothing, for etcd or an administrator to get over it.
constexpr absl::Duration kPause = absl::Milliseconds(500);

// Where clients reach this coordinator: what it listens on, with the host's name for all addresses.
std::string OwnAddress(const Flags& flags, const std::string& bound) {
  if (!flags.store.advertise.empty()) return flags.store.advertise;
  const std::string host = IsTcpAddress(bound) ? HostOf(bound) : "";
  if (host != "0.0.0.0" && host != "::") return bound;
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return bound;
  return absl::StrCat(name, bound.substr(bound.rfind(':')));
}

// One turn: standing by, leading, and the end of it.
class Turn {
 public:
  Turn(Flags& flags, const sigset_t& signals, const Findable& findable, Listener* listener,
       EtcdClient* etcd, const EtcdOptions& options)
      : flags_(flags),
        signals_(signals),
        findable_(findable),
        listener_(listener),
        etcd_(etcd),
        options_(options),
        check_(flags.tls_of_token ? "" : findable.token_file()) {}

  // The process's exit code; none: there is to be another turn.
  std::optional<int> Run();

 private:
  // Waits for a signal of the end, or for news. 0: news.
  int Await(bool until_won);
  std::optional<int> Lead(Election& election);
  std::optional<int> CannotLead(const absl::Status& why);

  Flags& flags_;
  const sigset_t& signals_;
  const Findable& findable_;
  Listener* const listener_;
  EtcdClient* const etcd_;
  const EtcdOptions& options_;
  News news_;
  std::unique_ptr<StandbyServer> standby_;
  LeaderCheck check_;
};

int Turn::Await(bool until_won) {
  for (;;) {
    if (!news_.over().ok() || news_.later() != 0) return 0;
    if (until_won && news_.won()) return 0;
    const int signal = AwaitSignal(signals_, findable_);
    if (signal != SIGUSR1) return signal;
  }
}

std::optional<int> Turn::Run() {
  auto standby = StandbyServer::Start(flags_.server, listener_, Clock::Real());
  if (!standby.ok()) return Complain(standby.status());
  standby_ = *std::move(standby);
  StandbyServer* const answers = standby_.get();
  const std::string own = OwnAddress(flags_, listener_->address());
  Election::Callbacks callbacks;
  callbacks.on_leader = [this, answers, own](const std::string& address) {
    check_.SetLeader(address == own ? "" : address);
    if (address == own) return;  // from then on there is another server
    answers->SetLeader(address);
    LS_LOG_INFO << (address.empty() ? std::string("stands by; nobody is known to lead")
                                    : absl::StrCat("stands by; ", address, " leads"));
  };
  callbacks.on_won = [this] { news_.Won(); };
  callbacks.on_lost = [this](const absl::Status& why) { news_.Lost(why); };
  Election election(etcd_, Clock::Real(), EtcdLayout{options_.prefix}, own, options_.lease,
                    std::move(callbacks));
  if (flags_.ready_fd >= 0 || !flags_.told_serving) {
    TellServing(flags_, listener_->address());
    flags_.told_serving = true;
  }
  const int signal = Await(/*until_won=*/true);
  if (signal != 0) {
    TellStopping(signal);
    return 0;
  }
  return Lead(election);
}

std::optional<int> Turn::CannotLead(const absl::Status& why) {
  // What is damaged or of another version stays so.
  if (absl::IsDataLoss(why) || absl::IsFailedPrecondition(why)) return Complain(why);
  LS_LOG_ERROR << "cannot lead: " << why.message();
  Clock::Real()->Sleep(kPause);
  return std::nullopt;
}

std::optional<int> Turn::Lead(Election& election) {
  LS_LOG_INFO << "elected to lead";
  const absl::StatusOr<std::unique_ptr<Store>> store = OpenEtcdStore(&election);
  if (!store.ok()) return CannotLead(store.status());
  standby_.reset();
  flags_.server.listener = listener_;
  flags_.server.on_broken = [this](const absl::Status& why) { news_.Broken(why); };
  flags_.server.on_later = [this](int64_t epoch) { news_.Later(epoch); };
  // It may have stood by for months, while the machine was suspended or its clock was set.
  const std::unique_ptr<Clock> clock = MakeRealClock();
  auto server = Server::Start(flags_.server, clock.get(), store->get());
  if (!server.ok()) return CannotLead(server.status());
  LS_LOG_INFO << "leads";
  const int signal = Await(/*until_won=*/false);
  if (signal != 0) TellStopping(signal);
  if (!news_.over().ok()) {
    LS_LOG_WARNING << "stands by from now on: " << news_.over().message();
  }
  server->reset();
  if (news_.later() != 0 && news_.over().ok()) {
    LS_LOG_WARNING << "an agent has obeyed coordinator number " << news_.later()
                   << " of this cluster: goes on above that";
    if (absl::Status raised = RaiseEpoch(store->get(), news_.later()); absl::IsOutOfRange(raised)) {
      return Complain(raised);
    }
  }
  if (signal != 0) return 0;
  return std::nullopt;
}

}  // namespace

int ServeAsCandidate(Flags& flags, const sigset_t& signals) {
  const absl::StatusOr<EtcdOptions> options = EtcdOptionsOf(flags.store);
  if (!options.ok()) return Complain(options.status());
  Findable findable;
  if (absl::Status chosen = findable.Choose(flags); !chosen.ok()) return Complain(chosen);
  const std::string& folder = flags.store.state.folder;
  if (!folder.empty() && ::access(folder.c_str(), F_OK) != 0) {
    if (absl::Status made = MakeStateFolder(folder, "--store"); !made.ok()) return Complain(made);
  }
  KeepIn(folder, flags);
  const bool reachable = flags.server.plaintext || flags.server.tls.has_value();
  auto listener = Listener::Bind(flags.server.listen, reachable, flags.server.local_users);
  if (!listener.ok()) return Complain(listener.status());
  findable.Announce((*listener)->address());
  EtcdClient etcd(*options);
  for (;;) {
    Turn turn(flags, signals, findable, listener->get(), &etcd, *options);
    if (const std::optional<int> code = turn.Run()) return *code;
  }
}

}  // namespace lockstep::coordinator
