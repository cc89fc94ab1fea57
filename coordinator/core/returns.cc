// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/returns.h"

#include <algorithm>

namespace lockstep::coordinator {

absl::Time SettledAt(const Context& context, absl::Time began) {
  return std::max(began, context.state.woke) + context.state.options.settle;
}

}  // namespace lockstep::coordinator
