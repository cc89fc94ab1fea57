// SPDX-License-Identifier: Apache-2.0
// The program `coordinator`: flags and wiring.
// Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start (the address is in use or not
// allowed, the token file cannot be read, the journal is in use, damaged or cannot be written);
// 2 usage; 3 the journal has failed while it served.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/server.h"
#include "coordinator/service/token_file.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

constexpr char kUsage[] =
    R"(Usage: coordinator [flags]
Takes jobs, finds them nodes, and keeps their workers together.

  --listen ADDRESS     unix:/path, unix-abstract:name or host:port; port 0 takes any free one.
                       Default: the socket coordinator.sock in this user's runtime folder
                       ($XDG_RUNTIME_DIR/lockstep, /run/lockstep or /tmp/lockstep-<uid>), where the
                       launcher looks too. On Unix sockets only this user and root are let in.
                       host:port needs a token; addresses beyond this machine need --plaintext
  --plaintext          serve other machines without encryption: whoever sees the network's packets
                       reads the token and all that is said
  --state-dir DIR      keep what must outlive this process in DIR/journal.db and go on from there;
                       without it jobs end with the coordinator
  --state-sync MODE    full: on the disk before anybody is told (default); off: safe from the end of
                       the process, but not of the machine
  --token-file FILE    callers must show the token in FILE, which is made when it is missing. With
                       host:port the default is DIR/token, or `token` in the runtime folder
  --ready-fd N         write the address and a newline to descriptor N when serving, then close it
  --parent-death[=PID] end (SIGKILL) when the parent process (PID, to be sure that it is it) ends
  --log-level LEVEL    debug, info, warning or error (default info)
  --version, --help

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start; 2 usage; 3 the journal has failed, and
another coordinator is to be started, which goes on from what is on the disk.
)";

struct Flags {
  ServerOptions server;
  std::string token_file;
  SqliteOptions state;  // folder empty: nothing is kept
  int ready_fd = -1;
  bool parent_death = false;
  int parent = 0;     // 0: whoever it is
  bool done = false;  // --help, --version
};

absl::Status SetLevel(absl::string_view name) {
  if (name == "debug") {
    SetLogLevel(LogLevel::kDebug);
  } else if (name == "info") {
    SetLogLevel(LogLevel::kInfo);
  } else if (name == "warning") {
    SetLogLevel(LogLevel::kWarning);
  } else if (name == "error") {
    SetLogLevel(LogLevel::kError);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level is debug, info, warning or error, not '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status SetFlag(absl::string_view name, absl::string_view value, Flags& flags) {
  if (name == "listen") {
    flags.server.listen = std::string(value);
  } else if (name == "token-file") {
    flags.token_file = std::string(value);
  } else if (name == "state-dir") {
    flags.state.folder = std::string(value);
  } else if (name == "state-sync") {
    if (value != "full" && value != "off") {
      return absl::InvalidArgumentError(
          absl::StrCat("--state-sync is full or off, not '", value, "'"));
    }
    flags.state.sync = value == "full";
  } else if (name == "log-level") {
    return SetLevel(value);
  } else if (name == "ready-fd" || name == "parent-death") {
    int number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a number, not '", value, "'"));
    }
    (name == "ready-fd" ? flags.ready_fd : flags.parent) = number;
    flags.parent_death |= name == "parent-death";
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
  }
  return absl::OkStatus();
}

// "--name value", "--name=value"; '_' counts as '-'.
absl::StatusOr<Flags> Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::cout << kUsage;
      flags.done = true;
      return flags;
    }
    if (argument == "--version") {
      std::cout << "coordinator " LOCKSTEP_VERSION "\n";
      flags.done = true;
      return flags;
    }
    absl::string_view rest = argument;
    if (!absl::ConsumePrefix(&rest, "--")) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", argument, "'"));
    }
    const size_t equals = rest.find('=');
    std::string name(rest.substr(0, equals));
    for (char& c : name) c = c == '_' ? '-' : c;
    if (name == "plaintext" && equals == absl::string_view::npos) {
      flags.server.plaintext = true;
      continue;
    }
    if (name == "parent-death" && equals == absl::string_view::npos) {
      flags.parent_death = true;
      continue;
    }
    if (equals == absl::string_view::npos && i + 1 >= argc) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    const std::string value(equals == absl::string_view::npos ? argv[++i]
                                                              : rest.substr(equals + 1));
    LS_RETURN_IF_ERROR(SetFlag(name, value, flags));
  }
  return flags;
}

void TellReady(int fd, const std::string& address) {
  const std::string line = absl::StrCat(address, "\n");
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    LS_LOG_WARNING << "nobody reads --ready-fd " << fd;
  }
  ::close(fd);
}

int Complain(const absl::Status& status) {
  std::cerr << "coordinator: " << status.message() << "\n";
  return 1;
}

// What the user's own verbs look for: the default socket, and the token of a TCP address.
class Findable {
 public:
  // Fills in the address and the token that the flags leave open.
  absl::Status Choose(Flags& flags) {
    if (flags.server.listen.empty()) {
      LS_ASSIGN_OR_RETURN(const std::string folder, MakeRuntimeFolder());
      flags.server.listen = DefaultAddressIn(folder);
    }
    LS_RETURN_IF_ERROR(CheckListenAddress(flags.server.listen, flags.server.plaintext));
    token_file_ = flags.token_file;
    if (token_file_.empty() && !IsTcpAddress(flags.server.listen)) return absl::OkStatus();
    if (token_file_.empty()) {
      std::string folder = flags.state.folder;
      if (folder.empty()) {
        LS_ASSIGN_OR_RETURN(folder, MakeRuntimeFolder());
      }
      token_file_ = absl::StrCat(folder, "/token");
    }
    LS_ASSIGN_OR_RETURN(flags.server.token, ReadOrMakeToken(token_file_));
    return absl::OkStatus();
  }

  // Leaves the link to the token of `address`. Whoever is told the token's file needs none.
  void Announce(const std::string& address) {
    if (token_file_.empty()) return;
    LS_LOG_INFO << "callers show the token in " << token_file_;
    if (!IsTcpAddress(address)) return;
    const absl::StatusOr<std::string> folder = MakeRuntimeFolder();
    absl::StatusOr<TokenLinkFile> link =
        folder.ok() ? TokenLinkFile::Make(token_file_, TokenLink(*folder, address))
                    : folder.status();
    if (link.ok()) {
      link_ = *std::move(link);
    } else {
      LS_LOG_WARNING << "the launcher needs --token-file: " << link.status().message();
    }
  }

 private:
  std::string token_file_;
  TokenLinkFile link_;
};

// Each connection is a descriptor.
void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LS_LOG_WARNING << "the limit of open files stays low (ulimit -n)";
  }
}

int Serve(Flags& flags, const sigset_t& signals) {
  RaiseFileLimit();
  const absl::StatusOr<std::unique_ptr<Store>> store =
      flags.state.folder.empty() ? MakeMemoryStore() : OpenSqliteStore(flags.state);
  if (!store.ok()) return Complain(store.status());
  Findable findable;
  if (absl::Status chosen = findable.Choose(flags); !chosen.ok()) return Complain(chosen);
  std::atomic<bool> broken = false;
  flags.server.on_broken = [&broken](const absl::Status&) {
    broken = true;
    ::kill(::getpid(), SIGTERM);  // which this thread waits for
  };
  auto server = Server::Start(flags.server, Clock::Real(), store->get());
  if (!server.ok()) return Complain(server.status());
  findable.Announce((*server)->address());
  if (flags.ready_fd >= 0) TellReady(flags.ready_fd, (*server)->address());
  LS_LOG_INFO << "coordinator " LOCKSTEP_VERSION " listens on " << (*server)->address();
  int signal = 0;
  sigwait(&signals, &signal);
  if (broken) return 3;  // the hub has said why
  LS_LOG_INFO << "stopping: " << (signal == SIGINT ? "SIGINT" : "SIGTERM");
  return 0;
}

int Main(int argc, char** argv) {
  absl::StatusOr<Flags> flags = Parse(argc, argv);
  if (!flags.ok()) {
    std::cerr << "coordinator: " << flags.status().message() << "\n\n" << kUsage;
    return 2;
  }
  if (flags->done) return 0;
  if (flags->parent_death) {
    // The parent may have ended before the request was made, so it is looked at again after it.
    const int before = flags->parent != 0 ? flags->parent : getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != before) return 1;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Before any thread starts, so that all of them inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit (ulimit -f) is a full disk
  return Serve(*flags, signals);
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
