// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/quiet.h"

#include <grpc/support/log.h>
#include <stdlib.h>

namespace lockstep::coordinator {

void QuietGrpc() {
  static const bool quiet = [] {
    if (getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
    return true;
  }();
  static_cast<void>(quiet);
}

}  // namespace lockstep::coordinator
