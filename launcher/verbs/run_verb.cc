// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/run_verb.h"

#include <iostream>
#include <optional>
#include <utility>

#include "common/json.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/cli/version.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/ordered_guest.h"
#include "launcher/local_run/run_as_guest.h"
#include "launcher/local_run/run_here.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"
#include "launcher/spawner/spawner.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/join.h"
#include "launcher/verbs/validate.h"

namespace lockstep::launcher {
namespace {

// Runs `verb` with a spawner.
template <typename Args>
int WithSpawner(const Args& args, int (*verb)(const Args&, Spawner*)) {
  // The spawner, too, is of the foreground: Ctrl-C must find it with its signals blocked.
  StopSignals::Block();
  auto spawner = Spawner::Fork();
  if (!spawner.ok()) return Complain(spawner.status());
  return verb(args, spawner->get());
}

}  // namespace

int RunVerb(const RunArgs& given) {
  RunArgs args = given;
  // While signals still end the program: what is typed may never come.
  args.job = WithText(std::move(args.job));
  bool guest = false;
  if (args.rendezvous.has_value()) {
    const std::optional<int> rank = args.rendezvous->node_rank;
    guest = rank.has_value() ? *rank > 0 : !IsEndpointHere(args.rendezvous->endpoint);
  }
  return WithSpawner(args, guest ? RunAsGuest : RunHere);
}
int RunVerb(const GuestArgs& args) { return WithSpawner(args, RunOrderedGuest); }
int RunVerb(const JoinArgs& args) { return WithSpawner(args, RunJoin); }
int RunVerb(const ValidateArgs& args) { return Validate(args, std::cout, std::cerr); }

int RunVerb(const VersionArgs& args) {
  if (args.common.output == Output::kJson) {
    std::cout << JsonObject().Add("schema", 1).Add("version", kVersion).Done() << "\n";
  } else {
    std::cout << "launcher " << kVersion << "\n";
  }
  return kExitOk;
}

int RunVerb(const HelpArgs& args) {
  std::cout << HelpText(args.verb);
  return kExitOk;
}

}  // namespace lockstep::launcher
