// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/hosts_plan.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "google/protobuf/util/time_util.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/cli/version.h"
#include "launcher/local_run/ordered_guest.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kTokenBytes = 32;
// A host that ssh has entered reaches the coordinator at once, or a firewall is in the way.
constexpr absl::Duration kReachWithin = absl::Minutes(1);

absl::StatusOr<std::vector<HostSlots>> ReadHostFile(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the host file ", file, " cannot be read, or is empty"));
  }
  return ParseHostFile(text.str(), file);
}

std::string OwnProgram() {
  char path[PATH_MAX] = {};
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "launcher";
}

bool IsV6(const std::string& address) { return absl::StrContains(address, ':'); }

bool HasSlots(const std::vector<HostSlots>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const HostSlots& host) { return host.slots > 0; });
}

// Returns whether a shell finds a program of this name.
bool IsProgram(const std::string& name) {
  if (absl::StrContains(name, '/')) return ::access(name.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? "/bin:/usr/bin" : path, ':')) {
    if (::access(absl::StrCat(folder.empty() ? "." : folder, "/", name).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

std::string PortOf(const std::string& address) { return address.substr(address.rfind(':')); }

// The hosts that the flags, or the file that they name, name. Errors: as PlanHosts, of the file.
absl::StatusOr<std::vector<HostSlots>> NamedHosts(const HostsArgs& args) {
  if (args.hostfile.empty()) return args.hosts;
  return ReadHostFile(args.hostfile);
}

}  // namespace

absl::StatusOr<HostsPlan> PlanHosts(const HostsArgs& args) {
  HostsPlan plan;
  LS_ASSIGN_OR_RETURN(plan.hosts, NamedHosts(args));
  const char* const variable = std::getenv("LOCKSTEP_SSH");
  plan.command = !args.ssh.empty() ? args.ssh : variable != nullptr ? variable : "";
  if (plan.command.empty()) plan.command = "ssh";
  plan.enter = EnterCommand(plan.command);
  if (plan.enter.empty() || !IsProgram(plan.enter[0])) {
    return absl::FailedPreconditionError(
        absl::StrCat("this host has no program '", plan.enter.empty() ? "" : plan.enter[0],
                     "', which hosts are to be entered with: install it, or name another command ",
                     "(--ssh, LOCKSTEP_SSH)"));
  }
  plan.launcher = args.launcher.empty() ? OwnProgram() : args.launcher;
  plan.listen = args.endpoint;
  plan.plaintext = args.plaintext;
  if (args.endpoint.empty()) {
    plan.addresses = ChooseDataAddresses(SystemAddresses(), InterfaceFilter(), "", "");
    // One socket listens at all of one family.
    const bool v4 = std::any_of(plan.addresses.begin(), plan.addresses.end(),
                                [](const std::string& each) { return !IsV6(each); });
    std::erase_if(plan.addresses, [&](const std::string& each) { return IsV6(each) == v4; });
    plan.listen = v4 ? "0.0.0.0:0" : "[::]:0";
    if (plan.addresses.empty()) {
      return absl::FailedPreconditionError(
          "this host has no address that another one could reach: name one with --rdzv-endpoint");
    }
  }
  CoordinatorArgs own;
  own.token = RandomHex(kTokenBytes);
  LS_ASSIGN_OR_RETURN(plan.tokens, TokensOfRun(own, args.plaintext));
  return plan;
}

absl::StatusOr<JobArgs> JobOnHosts(const std::vector<HostSlots>& hosts, const JobArgs& job) {
  JobArgs on_hosts = job;
  const int count = static_cast<int>(hosts.size());
  if (job.nodes.value_or(count) != count) {
    return absl::FailedPreconditionError(
        absl::StrCat("--nnodes is ", *job.nodes, ", and ", count, " hosts are named"));
  }
  on_hosts.workers_of_hosts = HasSlots(hosts);
  on_hosts.nodes = HasSlots(hosts) ? std::nullopt : std::make_optional(count);
  return on_hosts;
}

absl::Status PutOnHosts(const std::vector<HostSlots>& hosts, JobSpec* spec) {
  std::vector<int> ranks;
  const int each = std::max(1, spec->resources().nproc_per_node());
  bool all = true;
  for (const HostSlots& host : hosts) {
    all = all && host.slots > 0;
    ranks.push_back(host.slots > 0 ? host.slots : each);
  }
  if (!spec->resources().nproc_by().empty() && !all) {
    return absl::FailedPreconditionError(
        absl::StrCat("resources.nproc_per_node is '", spec->resources().nproc_by(),
                     "': with --hosts give the number of workers of each host, as in a:4,b:2"));
  }
  spec->mutable_resources()->clear_nproc_by();
  if (!HasSlots(hosts)) return absl::OkStatus();
  return job::SetCounted(ranks, spec->resources().device(), spec);
}

namespace {

// A job of an array, which only `submit` makes, is looked at as its first element.
absl::StatusOr<job::LoadResult> LoadOrElement(const JobArgs& args, Counted counted) {
  absl::StatusOr<job::LoadResult> loaded = LoadJob(args, counted);
  if (!loaded.ok() || loaded->ok() || args.array_index.has_value()) return loaded;
  const std::string variable = "${LOCKSTEP_ARRAY_INDEX}";
  if (!absl::StrContains(loaded->source, variable) &&
      std::none_of(args.sets.begin(), args.sets.end(),
                   [&](const std::string& set) { return absl::StrContains(set, variable); })) {
    return loaded;
  }
  JobArgs element = args;
  const std::string source = std::move(loaded->source);
  if (args.command.empty()) element.text = source;  // the standard input is read once
  element.array_index = 0;
  loaded = LoadJob(element, counted);
  if (loaded.ok()) {
    loaded->source = source;
    loaded->warnings.push_back(
        absl::StrCat(variable, " is checked as 0, which 'submit --array' alone replaces"));
  }
  return loaded;
}

}  // namespace

absl::StatusOr<job::LoadResult> LoadJobOfRun(const RunArgs& args, Counted counted) {
  LS_RETURN_IF_ERROR(InterfaceFilter::Parse(args.interfaces).status());
  if (!args.hosts.has_value()) return LoadOrElement(args.job, counted);
  LS_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, NamedHosts(*args.hosts));
  LS_ASSIGN_OR_RETURN(const JobArgs job, JobOnHosts(hosts, args.job));
  LS_ASSIGN_OR_RETURN(job::LoadResult loaded, LoadOrElement(job, Counted::kByCoordinator));
  if (loaded.ok() && loaded.admission.ok()) loaded.admission = PutOnHosts(hosts, &loaded.spec);
  return loaded;
}

int SlotsOn(const HostSlots& host, const JobSpec& spec) {
  const int ranks = host.slots > 0 ? host.slots : std::max(1, spec.resources().nproc_per_node());
  return ranks + job::MostProcesses(spec) - job::MostWorkers(spec);
}

std::string AddressHere(const HostsPlan& plan, const std::string& address) {
  if (plan.addresses.empty()) return address;
  return absl::StrCat(IsV6(plan.addresses[0]) ? "[::1]" : "127.0.0.1", PortOf(address));
}

absl::StatusOr<std::vector<RemoteHosts::Part>> PartsOf(const HostsPlan& plan, const RunArgs& args,
                                                       const JobSpec& spec,
                                                       const std::string& address) {
  GuestOrder order;
  order.set_version(kVersion);
  for (const std::string& own : plan.addresses) {
    order.add_endpoints(
        absl::StrCat(IsV6(own) ? absl::StrCat("[", own, "]") : own, PortOf(address)));
  }
  if (plan.addresses.empty()) order.add_endpoints(address);
  order.set_token(plan.tokens.shared);
  order.set_plaintext(plan.plaintext);
  const absl::Duration patience = std::min(kReachWithin, job::StartTimeout(spec));
  *order.mutable_patience() =
      google::protobuf::util::TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(patience));
  char folder[PATH_MAX] = {};
  if (::getcwd(folder, sizeof(folder)) == nullptr) {
    return ErrnoStatus(errno, "cannot find out the current folder");
  }
  order.set_folder(folder);
  order.set_run_dir(args.job.run_dir);
  order.set_runs_dir(args.job.runs_dir);
  order.set_interfaces(args.interfaces);
  if (spec.has_train()) order.set_checkpoint_dir(spec.checkpoint().dir());
  const std::string command = absl::StrCat("exec ", ShellWord(plan.launcher), " guest");
  std::vector<RemoteHosts::Part> parts;
  for (const HostSlots& host : plan.hosts) {
    order.set_slots(SlotsOn(host, spec));
    RemoteHosts::Part part;
    part.host = host.host;
    if (NeedsNoEntering(host.host)) {
      part.argv = {"/bin/sh", "-c", command};
    } else {
      part.argv = plan.enter;
      part.argv.insert(part.argv.end(), {host.host, command});
    }
    part.input = EncodeOrder(order);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace lockstep::launcher
