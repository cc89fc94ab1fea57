// SPDX-License-Identifier: Apache-2.0
#include "coordinator/init_verb.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/certificates.h"
#include "coordinator/service/cluster_files.h"
#include "coordinator/store_flags.h"

namespace lockstep::coordinator {
namespace {

constexpr int kPort = 7070;  // of the printed commands

constexpr char kUsage[] =
    R"(Usage: coordinator init [flags]
Makes what a coordinator needs that other machines reach over TLS: an authority, a certificate, an
authority of callers' certificates, and an administrator's token, from which nodes and users get
theirs (launcher token create). Run again, it renews the certificate and keeps the rest. A running
coordinator takes the new one within seconds.

  --state-dir DIR      the coordinator's; default ~/.local/state/lockstep (root: /var/lib/lockstep)
  --host NAME_OR_IP    where the coordinator is reached; may be given more than once. Default: where
                       it was so far, or all addresses of this host and its name
  --new-token          make another token; the coordinator takes those so far, too, until they are
                       removed from the file (the lines below the first)
  --rotate             make new authorities. Those so far are trusted, too; nodes and workers take
                       the new ones by themselves, users by `launcher token renew`
  --finish-rotation    trust the new authorities alone: who has not taken them is let in no more
  --help
)";

struct InitFlags {
  std::string state_dir;
  InitOptions options;
  bool help = false;
};

absl::StatusOr<InitFlags> Parse(const std::vector<std::string>& arguments) {
  InitFlags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h") {
      flags.help = true;
      return flags;
    }
    absl::string_view rest = arguments[i];
    if (!absl::ConsumePrefix(&rest, "--")) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[i], "'"));
    }
    const size_t equals = rest.find('=');
    std::string name(rest.substr(0, equals));
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "new-token" && equals == rest.npos) {
      flags.options.new_token = true;
      continue;
    }
    if ((name == "rotate" || name == "finish-rotation") && equals == rest.npos) {
      using Rotation = InitOptions::Rotation;
      const Rotation wanted = name == "rotate" ? Rotation::kBegin : Rotation::kFinish;
      if (flags.options.rotation != Rotation::kNone && flags.options.rotation != wanted) {
        return absl::InvalidArgumentError("a rotation is begun and finished by two commands");
      }
      flags.options.rotation = wanted;
      continue;
    }
    if (name != "state-dir" && name != "host") {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    }
    if (equals != rest.npos) LS_RETURN_IF_ERROR(CheckAttached(name, rest.substr(equals + 1)));
    if (equals == rest.npos && i + 1 >= arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    const std::string value(equals == rest.npos ? arguments[++i] : rest.substr(equals + 1));
    if (name == "host") {
      flags.options.hosts.push_back(value);
    } else {
      flags.state_dir = value;
    }
  }
  return flags;
}

absl::StatusOr<std::string> DefaultFolder() {
  if (::geteuid() == 0) return std::string("/var/lib/lockstep");
  if (const char* state = ::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return absl::StrCat(state, "/lockstep");
  }
  if (const char* home = ::getenv("HOME"); home != nullptr && home[0] == '/') {
    return absl::StrCat(home, "/.local/state/lockstep");
  }
  return absl::FailedPreconditionError("HOME is not set: give --state-dir");
}

// The name that the printed commands have.
std::string Address(const std::vector<std::string>& names) {
  const std::string& host = names.front();
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", kPort)
                                      : absl::StrCat(host, ":", kPort);
}

void SayRotation(InitOptions::Rotation rotation, const InitResult& made) {
  if (made.new_callers && !made.new_cluster) {
    std::cerr << "made the authority of callers' certificates, which the coordinator asks for from "
                 "its next start on: tokens of earlier versions have none, and until they are "
                 "renewed it needs --admit-without-certificate\n";
  }
  if (made.rotating) {
    std::cerr << "new authorities are trusted beside those so far; when nodes, workers and users "
                 "have taken them, finish with `coordinator init --finish-rotation`\n";
  } else if (rotation == InitOptions::Rotation::kFinish) {
    std::cerr << "the former authorities are trusted no more\n";
  }
}

absl::Status Init(const InitFlags& flags) {
  std::string folder = flags.state_dir;
  if (folder.empty()) {
    LS_ASSIGN_OR_RETURN(folder, DefaultFolder());
  }
  std::error_code ignored;
  folder = std::filesystem::absolute(folder, ignored).lexically_normal();
  LS_ASSIGN_OR_RETURN(const InitResult made,
                      InitCluster(folder, flags.options, Clock::Real()->Now()));
  const std::string address = Address(made.names);
  SayRotation(flags.options.rotation, made);
  std::cerr
      << (made.new_cluster ? "made a new cluster in " : "renewed the certificate in ") << folder
      << "\n"
      << "the coordinator is known as " << absl::StrJoin(made.names, ", ") << " until "
      << Day(made.ends) << "\n"
      << "start it, or let it run: it takes what is new within seconds\n"
      << "  coordinator --state-dir " << folder << " --listen " << address << "\n"
      << made.token_file
      << " is an administrator's: let it stay here, where nodes and users get theirs from it\n"
      << "  launcher token create --coordinator " << address
      << " --user node1 --role join --save-as token-of-node1\n"
      << "  launcher token create --coordinator " << address
      << " --user ann --role submit --save-as token-of-ann\n"
      << "copy a node's to that node, where nobody but its user reads it (it is a secret), and "
         "there:\n";
  std::cout << "launcher join --coordinator " << address << " --token-file token-of-node1"
            << std::endl;
  return absl::OkStatus();
}

}  // namespace

int RunInit(const std::vector<std::string>& arguments) {
  const absl::StatusOr<InitFlags> flags = Parse(arguments);
  if (!flags.ok()) {
    std::cerr << "coordinator init: " << flags.status().message() << "\n\n" << kUsage;
    return 2;
  }
  if (flags->help) {
    std::cout << kUsage;
    return 0;
  }
  const absl::Status made = Init(*flags);
  if (made.ok()) return 0;
  std::cerr << "coordinator init: " << made.message() << "\n";
  return absl::IsInvalidArgument(made) ? 2 : 1;
}

}  // namespace lockstep::coordinator
