// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/hosts_of_run.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/available_memory.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/token.h"
#include "job/meaning/workers.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/host.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kLeaveWithin = absl::Seconds(5);
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
// A worker's program alone, before any data. With less than that for each, the machine would only
// swap or kill.
constexpr int64_t kWorkerBytes = 12 << 20;

// Returns whether `host` is an address in numbers, perhaps with a scope.
bool IsAddress(const std::string& host) {
  in6_addr any = {};
  return ::inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         ::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &any) == 1;
}

}  // namespace

absl::StatusOr<RunTokens> TokensOfRun(const CoordinatorArgs& args, bool plaintext) {
  RunTokens tokens;
  if (!args.token_file.empty()) {
    LS_ASSIGN_OR_RETURN(tokens.shared, coordinator::ReadToken(args.token_file));
  } else {
    LS_ASSIGN_OR_RETURN(tokens.shared, coordinator::CheckToken(args.token, "LOCKSTEP_TOKEN"));
  }
  if (tokens.shared.empty()) {
    return absl::FailedPreconditionError(
        "a run over several hosts needs a token that all of them share: put one into a file that "
        "only you can read and name it with --token-file, or set LOCKSTEP_TOKEN");
  }
  tokens.shown = tokens.shared;
  if (plaintext) return tokens;
  LS_ASSIGN_OR_RETURN(coordinator::RunCredentials derived,
                      coordinator::CredentialsOfRun(tokens.shared));
  tokens.shown = std::move(derived.token);
  return tokens;
}

std::vector<std::string> AddressesOfHost(const std::string& host) {
  std::vector<std::string> addresses;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return addresses;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST] = "";
    if (::getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      const std::string address = text;
      addresses.push_back(address.substr(0, address.find('%')));
    }
  }
  return addresses;
}

bool IsThisHost(const std::string& host, const Resolver& resolve) {
  char name[HOST_NAME_MAX + 1] = {};
  const bool named = ::gethostname(name, sizeof(name) - 1) == 0 && host == name;
  if (named || host == "localhost" || host == HostName()) return true;
  const std::vector<std::string> found = resolve(host);
  if (found.empty()) return false;
  const std::vector<InterfaceAddress> own = SystemAddresses();
  return std::ranges::any_of(found, [&](const std::string& address) {
    // Every host calls all of these its own, and listens at any address of it at the last two.
    if (absl::StartsWith(address, "127.") || address == "::1") return true;
    if (address == "0.0.0.0" || address == "::") return true;
    return std::ranges::any_of(
        own, [&](const InterfaceAddress& each) { return each.address == address; });
  });
}

bool NeedsNoEntering(const std::string& host, const Resolver& resolve) {
  if (absl::StrContains(host, '@')) return false;  // as another user
  const bool may_be = IsAddress(host) || host.substr(0, host.find('.')) == HostName();
  const Resolver nobody = [](const std::string&) { return std::vector<std::string>(); };
  return IsThisHost(host, may_be ? resolve : nobody);
}

bool IsEndpointHere(const std::string& endpoint) {
  std::string host = endpoint.substr(0, endpoint.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return IsThisHost(host);
}

absl::Status CheckNoLabels(const JobSpec& spec) {
  if (spec.resources().labels().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job asks for hosts with labels (resources.labels), which those of a coordinator alone "
      "have: give --set 'resources.labels={}'; or start a coordinator, 'launcher join --label' on "
      "the hosts, and 'launcher submit'");
}

absl::Status CheckOneHost(const JobSpec& spec) {
  const auto nodes = job::RanksPerNode(spec).size();
  if (nodes > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job asks for ", nodes,
        " nodes (resources.nodes) and a run here has one host: give --nnodes=1; or the hosts with "
        "--hosts; or the same command on each host with --rdzv-endpoint=HOST:PORT and "
        "--node-rank=K; or start a coordinator, 'launcher join' on each host, and 'launcher "
        "submit'"));
  }
  const std::string& first = spec.resources().rank0_node();
  if (first.empty() || first == HostName()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank 0 is to start on ", first, " (resources.rank0_node), and a run here has this host (",
      HostName(), ") alone: leave the key out, or give --set resources.rank0_node=", HostName()));
}

int SlotsOfHost(const JobSpec& spec, bool over_hosts) {
  if (!over_hosts) return job::MostProcesses(spec);
  const std::vector<int> ranks = job::RanksPerNode(spec);
  return *std::max_element(ranks.begin(), ranks.end()) + job::MostProcesses(spec) -
         job::MostWorkers(spec);
}

absl::Status CheckMemory(const JobSpec& spec, int workers) {
  const int64_t needed = workers * kWorkerBytes;
  const int64_t available = AvailableMemory();
  if (needed <= available) return absl::OkStatus();
  const int most = job::MostWorkers(spec);
  const bool may_grow = most > job::WantedWorkers(spec) && workers >= most;
  return absl::ResourceExhaustedError(absl::StrCat(
      workers, " workers need at least ", ShortBytes(needed), " of memory and ",
      ShortBytes(available), " are free here: ",
      may_grow ? "the job may have so many at once; lower elastic.max_workers in the job file"
               : "ask for fewer with --nproc-per-node"));
}

void AwaitGuestsEnd(coordinator::Client* client) {
  const absl::Time deadline = Clock::Real()->Now() + kLeaveWithin;
  while (Clock::Real()->Now() < deadline) {
    const auto cluster = client->GetCluster(kCallTimeout);
    if (!cluster.ok()) return;
    const auto there = std::count_if(cluster->nodes().begin(), cluster->nodes().end(),
                                     [](const NodeStatus& node) { return node.connected(); });
    if (there <= 1) return;  // this host itself
    Clock::Real()->Sleep(kLookAgain);
  }
}

}  // namespace lockstep::launcher
