// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/connect.h"

#include <cerrno>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {

absl::StatusOr<coordinator::ClientOptions> ClientOptionsOf(const CoordinatorArgs& args) {
  coordinator::ClientOptions options;
  if (args.address.empty()) {
    return absl::UnavailableError(
        "no coordinator is named: give --coordinator=ADDRESS or set LOCKSTEP_COORDINATOR");
  }
  options.address = args.address;
  if (args.token_file.empty()) return options;
  std::ifstream file(args.token_file);
  if (!file) {
    return ErrnoStatus(errno, absl::StrCat("cannot read the token in ", args.token_file));
  }
  file >> options.token;
  return options;
}

absl::StatusOr<std::unique_ptr<coordinator::Client>> Connect(const CoordinatorArgs& args) {
  LS_ASSIGN_OR_RETURN(const coordinator::ClientOptions options, ClientOptionsOf(args));
  return coordinator::Client::Create(options);
}

int Complain(const absl::Status& status) {
  std::cerr << "error: " << PrintableLines(std::string(status.message())) << "\n";
  return ExitCodeOf(status);
}

}  // namespace lockstep::launcher
