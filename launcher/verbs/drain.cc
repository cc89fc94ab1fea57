// SPDX-License-Identifier: Apache-2.0
// The verbs of an administrator of nodes: drain, undrain.
#include <iostream>

#include "common/printable.h"
#include "coordinator/client/client.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/run_verb.h"

namespace lockstep::launcher {

int RunVerb(const DrainArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  DrainNodeRequest request;
  request.set_node(args.node);
  request.set_reason(args.reason);
  request.set_user(UserName());
  const auto response = (*client)->DrainNode(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << Printable(args.node)
            << " gets no work any more, and its workers move elsewhere; see "
            << "launcher nodes" << args.coordinator.flags << "\n";
  return kExitOk;
}

int RunVerb(const UndrainArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  UndrainNodeRequest request;
  request.set_node(args.node);
  const auto response = (*client)->UndrainNode(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << Printable(args.node) << " gets work again\n";
  return kExitOk;
}

}  // namespace lockstep::launcher
