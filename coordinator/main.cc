// SPDX-License-Identifier: Apache-2.0
// The program `coordinator`: flags and wiring.
// Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start (the address is in use or not
// allowed, the token file cannot be read, the journal is in use, damaged or cannot be written);
// 2 usage.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/service/server.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

constexpr char kUsage[] =
    R"(Usage: coordinator [flags]
Takes jobs, finds them nodes, and keeps their workers together.

  --listen ADDRESS     unix:/path, unix-abstract:name or host:port; port 0 takes any free one
                       (default 127.0.0.1:7070; addresses beyond this machine are refused)
  --state-dir DIR      keep what must outlive this process in DIR/journal.db and go on from there;
                       without it jobs end with the coordinator
  --state-sync MODE    full: on the disk before anybody is told (default); off: safe from the end of
                       the process, but not of the machine
  --token-file FILE    callers must show the token in FILE
  --ready-fd N         write the address and a newline to descriptor N when serving, then close it
  --parent-death[=PID] end (SIGKILL) when the parent process (PID, to be sure that it is it) ends
  --log-level LEVEL    debug, info, warning or error (default info)
  --version, --help

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start; 2 usage.
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

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  std::ifstream in(file);
  if (!in) return ErrnoStatus(errno, absl::StrCat("cannot read the token file '", file, "'"));
  std::string token;
  std::getline(in, token);
  absl::StripAsciiWhitespace(&token);
  if (token.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("there is no token in '", file, "'"));
  }
  return token;
}

void TellReady(int fd, const std::string& address) {
  const std::string line = absl::StrCat(address, "\n");
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    LS_LOG_WARNING << "nobody reads --ready-fd " << fd;
  }
  ::close(fd);
}

int Serve(Flags& flags, const sigset_t& signals) {
  if (!flags.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadToken(flags.token_file);
    if (!token.ok()) {
      std::cerr << "coordinator: " << token.status().message() << "\n";
      return 1;
    }
    flags.server.token = *std::move(token);
  }
  const absl::StatusOr<std::unique_ptr<Store>> store =
      flags.state.folder.empty() ? MakeMemoryStore() : OpenSqliteStore(flags.state);
  if (!store.ok()) {
    std::cerr << "coordinator: " << store.status().message() << "\n";
    return 1;
  }
  auto server = Server::Start(flags.server, Clock::Real(), store->get());
  if (!server.ok()) {
    std::cerr << "coordinator: " << server.status().message() << "\n";
    return 1;
  }
  if (flags.ready_fd >= 0) TellReady(flags.ready_fd, (*server)->address());
  LS_LOG_INFO << "coordinator " LOCKSTEP_VERSION " listens on " << (*server)->address();
  int signal = 0;
  sigwait(&signals, &signal);
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
  return Serve(*flags, signals);
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) { return lockstep::coordinator::Main(argc, argv); }
