// SPDX-License-Identifier: Apache-2.0
#include "coordinator/flags.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/log_environment.h"
#include "common/protocol_version.h"
#include "common/status.h"
#include "coordinator/service/listener.h"
#include "job/meaning/units.h"

namespace lockstep::coordinator {
namespace {

constexpr char kUsage[] =
    R"(Usage: coordinator [flags]
       coordinator init [--state-dir DIR] [--host NAME_OR_IP]...   certificates and a token for TLS
       coordinator backup FILE [--state-dir DIR | --store ADDRESS]   a copy of the journal, any time
       coordinator restore FILE [--state-dir DIR | --store ADDRESS]  an empty journal made of a copy
         [--audit FILE]...   without the tokens that this audit.jsonl says were revoked
Takes jobs, finds them nodes, and keeps their workers together.

  --listen ADDRESS     unix:/path, unix-abstract:name or host:port; port 0 takes any free one.
                       Default: the socket coordinator.sock in this user's runtime folder
                       ($XDG_RUNTIME_DIR/lockstep, /run/lockstep or /tmp/lockstep-<uid>), where the
                       launcher looks too. On Unix sockets only this user and root are let in,
                       unless --local-users is given.
                       host:port needs a token, and beyond this machine TLS: `coordinator init`
  --plaintext          serve other machines without encryption: whoever sees the network's packets
                       reads the token and all that is said
  --state-dir DIR      keep what must outlive this process in DIR/journal.db and go on from there;
                       without it jobs end with the coordinator
  --state-sync MODE    full: on the disk before anybody is told (default); off: safe from the end of
                       the process, but not of the machine
  --store ADDRESS      keep it in etcd, for several coordinators of which one leads and the others
                       stand by: etcd://host:2379[,host:2379]...[/prefix], or etcds:// with TLS.
                       --state-dir then holds the token, the certificates and jobs' workdirs
  --store-ca FILE, --store-cert FILE, --store-key FILE
                       certificates towards etcd (PEM)
  --store-user NAME, --store-password-file FILE
                       who it is to etcd
  --store-plaintext    speak etcd:// to other machines, too: whoever sees the network's packets reads
                       the journal with jobs' secrets, and the password of --store-user
  --store-lease T      how long the others wait for a leader that is silent (default 2s)
  --advertise ADDRESS  with --store: where clients reach this coordinator, when that is not --listen
  --token-file FILE    callers must show the token in FILE, which is made when it is missing. With
                       host:port the default is DIR/token, or `token` in the runtime folder
  --local-users        the Unix socket is open to all users of this machine: each may submit, and
                       have what they have submitted; others' jobs take a token
  --quota WHO:LIMITS   what a user's jobs may have at once, such as ann:slots=64,gpus=8,jobs=4; "*" is
                       everybody else, each; may be repeated
  --fair-share-half-life T
                       what users have used counts for half after T (default 7d) when it is decided
                       whose job is next; 0: it does not count
  --log-memory SIZE    what is kept of workers' lines for who follows a job, of all jobs together
                       (default 256MiB); the log files have all of them
  --tls-of-token       the token is a secret that all sides share, who derive TLS's certificates from
                       it; `launcher --rdzv-endpoint` starts its coordinator like this
  --admit-without-certificate
                       after `coordinator init` callers over TCP need a certificate, which their
                       tokens carry; this lets in those whose tokens are of an earlier version, too,
                       until they are renewed (`launcher token renew`)
  --nodes-by HOW       what a job that waits for nodes says: join (default), start some with `launcher
                       join`; command, the same command on other hosts; nobody, nothing. A run's
                       launcher starts its coordinator with one of the last two
  --ready-fd N         write the address and a newline to descriptor N when serving, then close it
  --parent-death[=PID] end (SIGKILL) when the parent process (PID, to be sure that it is it) ends
  --log-level LEVEL    debug, info, warning or error (default info)
  --version, --help

Exit codes: 0 stopped by SIGTERM, SIGINT or SIGHUP; 1 could not start; 2 usage; 3 the journal has failed, and
another coordinator is to be started, which goes on from what is on the disk.
)";

absl::Status SetLevel(absl::string_view name) {
  const std::optional<LogLevel> level = LogLevelOf(std::string(name));
  if (!level.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level is debug, info, warning or error, not '", name, "'"));
  }
  SetLogLevel(*level);
  return absl::OkStatus();
}

// "ann:slots=64,gpus=8,jobs=4".
absl::Status SetQuota(absl::string_view value, Options& limits) {
  absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("--quota is such as ann:slots=64,gpus=8,jobs=4, not '", value, "'"));
  const size_t colon = value.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong;
  Quota quota;
  for (const absl::string_view limit : absl::StrSplit(value.substr(colon + 1), ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(limit, absl::MaxSplits('=', 1));
    int* number = parts.first == "slots"  ? &quota.slots
                  : parts.first == "gpus" ? &quota.gpus
                  : parts.first == "jobs" ? &quota.jobs
                                          : nullptr;
    if (number == nullptr || !absl::SimpleAtoi(parts.second, number) || *number < 1) return wrong;
  }
  const std::string user(value.substr(0, colon));
  (user == "*" ? limits.quota : limits.quotas[user]) = quota;
  return absl::OkStatus();
}

absl::Status SetNodesBy(absl::string_view value, Options& limits) {
  if (value == "join") {
    limits.nodes_by = NodesBy::kJoin;
  } else if (value == "command") {
    limits.nodes_by = NodesBy::kSameCommand;
  } else if (value == "nobody") {
    limits.nodes_by = NodesBy::kNobody;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes-by is join, command or nobody, not '", value, "'"));
  }
  return absl::OkStatus();
}

absl::Status SetHalfLife(absl::string_view value, Options& limits) {
  const auto half = job::ParseDuration(value);
  if (!half.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fair-share-half-life: ", half.status().message()));
  }
  limits.fair_share_half_life = absl::Nanoseconds(*half);
  return absl::OkStatus();
}

absl::Status SetLogMemory(absl::string_view value, Options& limits) {
  constexpr int64_t kLeast = 1 << 20;
  const auto bytes = job::ParseSize(value);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--log-memory: ", bytes.status().message()));
  }
  if (*bytes < kLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-memory is at least ", job::FormatSize(kLeast), ", not '", value, "'"));
  }
  limits.log_memory = static_cast<size_t>(*bytes);
  return absl::OkStatus();
}

absl::Status SetNumber(absl::string_view name, absl::string_view value, int& number) {
  if (absl::SimpleAtoi(value, &number) && number >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a number, not '", value, "'"));
}

absl::Status SetText(absl::string_view value, std::string& text) {
  text = std::string(value);
  return absl::OkStatus();
}

// Empty: as without the flag.
absl::Status SetListen(absl::string_view value, std::string& address) {
  if (!value.empty()) LS_RETURN_IF_ERROR(Annotate(CheckListenForm(value), "--listen"));
  return SetText(value, address);
}

absl::Status TurnOn(bool& flag) {
  flag = true;
  return absl::OkStatus();
}

using Value = absl::string_view;

enum class Takes { kNothing, kValue, kPerhaps };

// A flag that is not one of the store's.
struct Flag {
  absl::string_view name;
  Takes takes;
  // Without a value its data() is null.
  absl::Status (*set)(Value value, Flags& flags);
};

constexpr Flag kFlags[] = {
    {"listen", Takes::kValue, [](Value v, Flags& f) { return SetListen(v, f.server.listen); }},
    {"plaintext", Takes::kNothing, [](Value, Flags& f) { return TurnOn(f.server.plaintext); }},
    {"token-file", Takes::kValue, [](Value v, Flags& f) { return SetText(v, f.token_file); }},
    {"local-users", Takes::kNothing, [](Value, Flags& f) { return TurnOn(f.server.local_users); }},
    {"quota", Takes::kValue, [](Value v, Flags& f) { return SetQuota(v, f.server.limits); }},
    {"fair-share-half-life", Takes::kValue,
     [](Value v, Flags& f) { return SetHalfLife(v, f.server.limits); }},
    {"log-memory", Takes::kValue,
     [](Value v, Flags& f) { return SetLogMemory(v, f.server.limits); }},
    {"tls-of-token", Takes::kNothing, [](Value, Flags& f) { return TurnOn(f.tls_of_token); }},
    {"admit-without-certificate", Takes::kNothing,
     [](Value, Flags& f) { return TurnOn(f.admit_without_certificate); }},
    {"nodes-by", Takes::kValue, [](Value v, Flags& f) { return SetNodesBy(v, f.server.limits); }},
    {"ready-fd", Takes::kValue,
     [](Value v, Flags& f) { return SetNumber("ready-fd", v, f.ready_fd); }},
    {"parent-death", Takes::kPerhaps,
     [](Value v, Flags& f) {
       f.parent_death = true;
       return v.data() == nullptr ? absl::OkStatus() : SetNumber("parent-death", v, f.parent);
     }},
    {"log-level", Takes::kValue, [](Value v, Flags&) { return SetLevel(v); }},
};

}  // namespace

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  flags.server.limits.protocol_version = SpokenProtocolVersion();
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
    const bool of_store = IsStoreFlag(name);
    const Flag* const flag = std::find_if(std::begin(kFlags), std::end(kFlags),
                                          [&](const Flag& known) { return known.name == name; });
    if (!of_store && flag == std::end(kFlags)) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    }
    const Takes takes = !of_store                   ? flag->takes
                        : StoreFlagTakesValue(name) ? Takes::kValue
                                                    : Takes::kNothing;
    Value value;
    if (equals != absl::string_view::npos) {
      if (takes == Takes::kNothing) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
      value = rest.substr(equals + 1);
      LS_RETURN_IF_ERROR(CheckAttached(name, value));
    } else if (takes == Takes::kValue) {
      if (i + 1 >= argc) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
      }
      value = argv[++i];
    }
    LS_RETURN_IF_ERROR(of_store ? SetStoreFlag(name, value, flags.store) : flag->set(value, flags));
  }
  return flags;
}

}  // namespace lockstep::coordinator
