// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/server.h"

#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/quiet.h"
#include "coordinator/client/token.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/door.h"
#include "coordinator/service/front.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/wall_clock.h"

namespace lockstep::coordinator {
namespace {

// Descriptors for everything but connections.
constexpr size_t kOtherDescriptors = 64;
constexpr int64_t kMostPackagesInMemory = 256 << 20;
// Users of this machine that speak to the coordinator over its Unix socket since it started.
constexpr size_t kMostLocalUsers = 64;

std::vector<std::string> Secrets(const ServerOptions& options) {
  std::vector<std::string> secrets = options.other_tokens;
  if (!options.token.empty()) secrets.push_back(options.token);
  return secrets;
}

std::set<std::string> NamesOf(const std::vector<std::string>& secrets) {
  std::set<std::string> names;
  for (const std::string& secret : secrets) names.insert(NameOfToken(secret));
  return names;
}

Admission::Limits ConnectionLimits() {
  Admission::Limits limits;
  rlimit open = {};
  if (::getrlimit(RLIMIT_NOFILE, &open) != 0) return limits;
  const size_t files = std::max<size_t>(open.rlim_cur, 2 * kOtherDescriptors);
  limits.connections = std::min(limits.connections, files - kOtherDescriptors);
  limits.unproven = std::min(limits.unproven, limits.connections / 2);
  limits.unproven_of_host = std::min(limits.unproven_of_host, limits.connections / 4);
  return limits;
}

// The name of a user of this machine; its number where it has none.
std::string NameOf(uid_t uid) {
  passwd entry = {};
  passwd* found = nullptr;
  char buffer[4096];
  if (::getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) != 0 || found == nullptr) {
    return absl::StrCat(uid);
  }
  return found->pw_name;
}

class GrpcServer : public Server {
 public:
  GrpcServer(const ServerOptions& options, Clock* clock, Store* store, Beginning beginning)
      : hub_(clock, store, std::move(beginning), options.on_broken, options.on_later, WallClock()),
        door_(Secrets(options), ConnectionLimits(), options.local_users, clock),
        audit_(options.audit, clock, WallClock()),
        packages_(PackageSettings(options)),
        transfers_(options.piece_patience, options.transfer_share, clock),
        busy_(options.piece_patience, options.transfer_share, clock),
        is_tcp_(IsTcpAddress(options.listen)),
        needs_token_(is_tcp_ || !options.token.empty()),
        issuer_(options.issuer),
        names_(NamesOf(Secrets(options))),
        tls_(is_tcp_ ? options.tls : std::nullopt) {}

  ~GrpcServer() override {
    if (listener_ != nullptr) listener_->Stop();
    fronts_.clear();
    for_the_rest_.reset();
  }

  absl::Status Serve(Listener* listener, std::unique_ptr<Listener> own) {
    // The one that most need is there before anybody comes.
    if (FrontFor(is_tcp_ ? kAnybody : ::geteuid()) == nullptr) {
      return absl::InternalError("gRPC's server does not start");
    }
    own_listener_ = std::move(own);
    listener_ = listener;
    listener_->Start([this](UniqueFd fd) { Take(std::move(fd)); }, &door_);
    return absl::OkStatus();
  }

  const std::string& address() const override { return listener_->address(); }

 private:
  static constexpr uid_t kAnybody = static_cast<uid_t>(-1);

  // On the listener's thread, as all that makes fronts once it runs.
  void Take(UniqueFd fd) {
    ucred user = {};
    user.uid = kAnybody;
    socklen_t size = sizeof(user);
    if (!is_tcp_ && ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return;
    if (Front* const front = FrontFor(user.uid)) front->Take(std::move(fd));
  }

  // Null: gRPC's server does not start. Users of the machine keep theirs; those who come when there
  // are too many, but for root, share one that tells them so.
  Front* FrontFor(uid_t uid) {
    const auto found = fronts_.find(uid);
    if (found != fronts_.end()) return found->second.get();
    if (fronts_.size() < kMostLocalUsers || uid == 0) {
      std::unique_ptr<Front> front = NewFront(WhoIs(uid));
      return front == nullptr ? nullptr : (fronts_[uid] = std::move(front)).get();
    }
    if (for_the_rest_ == nullptr) for_the_rest_ = NewFront(TooManyUsers());
    return for_the_rest_.get();
  }

  std::unique_ptr<Front> NewFront(absl::StatusOr<Requester> who) {
    auto front = std::make_unique<Front>(
        Front::Shared{&hub_, &door_, &audit_, &packages_, &transfers_, &busy_, &issuer_},
        std::move(who));
    if (!front->Serve(TlsCredentials(tls_, TokenIsGood()))) return nullptr;
    return front;
  }

  // Whom the kernel means. Errors: Unauthenticated, where a token says it.
  absl::StatusOr<Requester> WhoIs(uid_t uid) const {
    if (needs_token_ || uid == kAnybody) {
      return absl::UnauthenticatedError(
          "the coordinator asks for a token and was shown none: name its file (--token-file, "
          "LOCKSTEP_TOKEN_FILE)");
    }
    Requester who;
    who.set_user(NameOf(uid));
    who.set_role(uid == ::geteuid() || uid == 0 ? ROLE_ADMIN : ROLE_SUBMIT);
    return who;
  }

  static absl::Status TooManyUsers() {
    LS_LOG_WARNING << "more than " << kMostLocalUsers
                   << " users of this machine have spoken to the coordinator; others are turned "
                      "away without a token until it is started again";
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator has served ", kMostLocalUsers,
        " users of this machine and takes no more: show a token (--token-file), or have the "
        "coordinator started again"));
  }

  // Whose certificates pass the handshake: those of tokens that are good now, workers' being their
  // nodes'.
  Admits TokenIsGood() {
    return [this](absl::string_view name) {
      return names_.contains(std::string(name)) || hub_.EndOfToken(name).has_value();
    };
  }

  // Jobs that have not ended need theirs.
  PackageStore::Settings PackageSettings(const ServerOptions& options) {
    PackageStore::Settings settings;
    settings.folder = options.packages;
    if (settings.folder.empty()) settings.most_bytes = kMostPackagesInMemory;
    settings.in_use = [this] {
      std::set<std::string> used;
      for (const std::string& workdir : hub_.Workdirs()) used.insert(PackageOf(workdir));
      return used;
    };
    return settings;
  }

  Hub hub_;
  Door door_;
  Audit audit_;
  PackageStore packages_;
  Transfers transfers_;
  PackageService::Busy busy_;
  const bool is_tcp_;
  const bool needs_token_;
  const TokenIssuer issuer_;
  const std::set<std::string> names_;  // of the cluster's tokens' certificates
  const std::optional<ServerTls> tls_;
  // By who is at the other end (kAnybody: of TCP).
  std::map<uid_t, std::unique_ptr<Front>> fronts_;
  std::unique_ptr<Front> for_the_rest_;  // null: not needed so far
  std::unique_ptr<Listener> own_listener_;
  Listener* listener_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Clock* clock,
                                                      Store* store) {
  QuietGrpc();
  const bool reachable = options.plaintext || options.tls.has_value();
  if (IsTcpAddress(options.listen) && options.token.empty()) {
    LS_RETURN_IF_ERROR(CheckListenAddress(options.listen, reachable));
    return absl::FailedPreconditionError(
        absl::StrCat("'", options.listen, "' can be reached by every user of this machine: that ",
                     "needs a token; listen on a Unix socket or give one"));
  }
  std::unique_ptr<Listener> own;
  if (options.listener == nullptr) {
    LS_ASSIGN_OR_RETURN(own, Listener::Bind(options.listen, reachable, options.local_users));
  }
  Listener* const listener = own == nullptr ? options.listener : own.get();
  LS_ASSIGN_OR_RETURN(Beginning beginning, Begin(store, options.limits, clock->Now()));
  if (beginning.speaker.epoch > 1) {
    LS_LOG_INFO << "goes on from the journal: " << beginning.state.jobs.size() << " jobs, "
                << beginning.state.nodes.size() << " nodes; coordinator number "
                << beginning.speaker.epoch << " of it";
  }
  auto server = std::make_unique<GrpcServer>(options, clock, store, std::move(beginning));
  LS_RETURN_IF_ERROR(server->Serve(listener, std::move(own)));
  return server;
}

}  // namespace lockstep::coordinator
