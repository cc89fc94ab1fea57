// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/connect.h"

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/token.h"
#include "launcher/local_run/submission.h"

namespace lockstep::launcher {

absl::StatusOr<coordinator::ClientOptions> ClientOptionsOf(const CoordinatorArgs& args) {
  coordinator::ClientOptions options;
  options.address = args.address;
  if (options.address.empty()) {
    LS_ASSIGN_OR_RETURN(options.address, coordinator::FindDefaultAddress());
  }
  if (args.token_file.empty() && !args.token.empty()) {
    LS_ASSIGN_OR_RETURN(options.token, coordinator::CheckToken(args.token, "LOCKSTEP_TOKEN"));
  } else if (args.token_file.empty()) {
    LS_ASSIGN_OR_RETURN(options.token, coordinator::FindToken(options.address));
  } else {
    LS_ASSIGN_OR_RETURN(options.token, coordinator::ReadToken(args.token_file));
  }
  return options;
}

absl::StatusOr<std::unique_ptr<coordinator::Client>> Connect(const CoordinatorArgs& args) {
  LS_ASSIGN_OR_RETURN(const coordinator::ClientOptions options, ClientOptionsOf(args));
  return coordinator::Client::Create(options);
}

absl::Status WithoutFollower(const absl::Status& why) {
  if (!absl::IsUnauthenticated(why)) return why;
  return absl::UnauthenticatedError(absl::StrCat(why.message(), "; the job is not ended by that"));
}

int Complain(const absl::Status& status, Input input) {
  const std::string text = PrintableLines(std::string(status.message()));
  std::cerr << (IsDiagnostics(status) ? text : absl::StrCat("error: ", text, "\n"));
  return ExitCodeOf(status, input);
}

}  // namespace lockstep::launcher
