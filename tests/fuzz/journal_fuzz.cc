// SPDX-License-Identifier: Apache-2.0
// Any rows are a coordinator's state or DataLoss, never a crash.
// A row is two bytes with the length of its key, two with that of its value, and both.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/check.h"
#include "coordinator/core/core.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: a fuzz target is one function
  std::vector<coordinator::Row> rows;
  const auto* at = reinterpret_cast<const char*>(data);
  while (size >= 4) {
    const size_t key = data[0] | data[1] << 8, value = data[2] | data[3] << 8;
    if (size < 4 + key + value) break;
    rows.push_back({std::string(at + 4, key), std::string(at + 4 + key, value)});
    data += 4 + key + value;
    at += 4 + key + value;
    size -= 4 + key + value;
  }
  const absl::Time now = absl::UnixEpoch() + absl::Hours(24 * 365 * 50);
  const auto state = coordinator::Restore(rows, coordinator::Options(), now);
  if (!state.ok()) LS_CHECK(absl::IsDataLoss(state.status())) << state.status();
  return 0;
}
