// SPDX-License-Identifier: Apache-2.0
#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep {

void CheckFailed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "CHECK failed at %s:%d: %s %s\n", file, line, expression, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace lockstep
