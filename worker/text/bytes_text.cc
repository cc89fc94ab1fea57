// SPDX-License-Identifier: Apache-2.0
#include "worker/text/bytes_text.h"

#include "absl/strings/str_format.h"

namespace lockstep::worker {

std::string BytesText(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, units[unit]);
}

}  // namespace lockstep::worker
