// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serve.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "common/signal_name.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/server.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

void Wake() { ::kill(::getpid(), SIGUSR1); }

}  // namespace

void News::End(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  over_.Update(why);
}

void News::Broken(const absl::Status& why) {
  End(why);
  Wake();
}

void News::Lost(const absl::Status& why) {
  End(why);
  Wake();
}

void News::Later(int64_t epoch) {
  {
    absl::MutexLock lock(&mu_);
    later_ = std::max(later_, epoch);
  }
  Wake();
}

void News::Won() {
  {
    absl::MutexLock lock(&mu_);
    won_ = true;
  }
  Wake();
}

absl::Status News::over() const {
  absl::MutexLock lock(&mu_);
  return over_;
}

bool News::won() const {
  absl::MutexLock lock(&mu_);
  return won_;
}

int64_t News::later() const {
  absl::MutexLock lock(&mu_);
  return later_;
}

int AwaitSignal(const sigset_t& signals, const Findable& findable) {
  constexpr timespec kDay = {24 * 60 * 60, 0};
  for (;;) {
    if (const std::string warning = findable.Warning(); !warning.empty()) {
      LS_LOG_WARNING << warning;
    }
    int signal;
    do signal = sigtimedwait(&signals, nullptr, &kDay);
    while (signal < 0 && errno == EINTR);
    if (signal > 0) return signal;
  }
}

void TellServing(Flags& flags, const std::string& address) {
  if (flags.ready_fd >= 0) {
    const std::string line = absl::StrCat(address, "\n");
    const bool told =
        ::write(flags.ready_fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    // A run that has ended early by then takes its coordinator along.
    if (!told && !flags.parent_death) {
      LS_LOG_WARNING << "nobody reads --ready-fd " << flags.ready_fd;
    }
    ::close(flags.ready_fd);
    flags.ready_fd = -1;
  }
  LS_LOG_INFO << "coordinator " LOCKSTEP_VERSION " listens on " << address
              << (flags.server.tls.has_value() ? " with TLS" : "");
  TellServiceManager(absl::StrCat("READY=1\nSTATUS=listens on ", address));
}

void TellStopping(int signal) {
  TellServiceManager("STOPPING=1");
  LS_LOG_INFO << "stopping: " << SignalName(signal);
}

int Complain(const absl::Status& status) {
  std::cerr << "coordinator: " << status.message() << "\n";
  return 1;
}

void KeepIn(const std::string& folder, Flags& flags) {
  if (folder.empty()) return;
  flags.server.packages = folder + "/packages";
  // Of a run on one machine nobody asks.
  if (!flags.parent_death) flags.server.audit = folder + "/audit.jsonl";
}

int ServeAlone(Flags& flags, const sigset_t& signals) {
  const SqliteOptions& state = flags.store.state;
  const absl::StatusOr<std::unique_ptr<Store>> store =
      state.folder.empty() ? MakeMemoryStore() : OpenSqliteStore(state);
  if (!store.ok()) return Complain(store.status());
  Findable findable;
  if (absl::Status chosen = findable.Choose(flags); !chosen.ok()) return Complain(chosen);
  const bool reachable = flags.server.plaintext || flags.server.tls.has_value();
  KeepIn(state.folder, flags);
  auto listener = Listener::Bind(flags.server.listen, reachable, flags.server.local_users);
  if (!listener.ok()) return Complain(listener.status());
  flags.server.listener = listener->get();
  for (bool told = false;; told = true) {
    News news;
    flags.server.on_broken = [&news](const absl::Status& why) { news.Broken(why); };
    flags.server.on_later = [&news](int64_t epoch) { news.Later(epoch); };
    auto server = Server::Start(flags.server, Clock::Real(), store->get());
    if (!server.ok()) return Complain(server.status());
    if (!told) {
      findable.Announce((*server)->address());
      TellServing(flags, (*server)->address());
    }
    int signal = SIGUSR1;
    while (signal == SIGUSR1 && news.over().ok() && news.later() == 0) {
      signal = AwaitSignal(signals, findable);
    }
    if (!news.over().ok()) return 3;  // the hub has said why
    if (signal != SIGUSR1) {
      TellStopping(signal);
      return 0;
    }
    server->reset();
    LS_LOG_WARNING << "an agent has obeyed coordinator number " << news.later()
                   << " of this cluster, so that the journal is an older copy: goes on above that";
    if (absl::Status raised = RaiseEpoch(store->get(), news.later()); !raised.ok()) {
      return Complain(raised);
    }
  }
}

}  // namespace lockstep::coordinator
