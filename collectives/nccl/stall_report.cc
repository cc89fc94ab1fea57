// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/stall_report.h"

#include <string>

#include "absl/status/statusor.h"
#include "collectives/nccl/ras_client.h"
#include "common/clock.h"
#include "common/log.h"

namespace lockstep {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr int kLines = 8;

}  // namespace

void StallReport::Begin() {
  if (asking_.exchange(true)) return;
  thread_.Join();  // it has said all that it had to
  thread_ = Thread("nccl-ras", [this] {
    const absl::StatusOr<std::string> report =
        QueryRas(RasAddress(), Clock::Real()->Now() + kPatience);
    if (report.ok()) {
      LS_LOG_WARNING << "a collective stands still; NCCL's watch says: "
                     << RasDigest(*report, kLines);
    } else {
      LS_LOG_DEBUG << report.status().message();
    }
    asking_.store(false);
  });
}

}  // namespace lockstep
