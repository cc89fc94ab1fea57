// SPDX-License-Identifier: Apache-2.0
#include "common/protocol_version.h"

#include <cstdlib>

#include "absl/strings/numbers.h"

namespace lockstep {

int SpokenProtocolVersion() {
  const char* told = std::getenv("LOCKSTEP_PROTOCOL_VERSION");
  int version = 0;
  return told != nullptr && absl::SimpleAtoi(told, &version) && version > 0 ? version
                                                                            : kProtocolVersion;
}

}  // namespace lockstep
