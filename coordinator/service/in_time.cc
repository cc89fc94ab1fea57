// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/in_time.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lockstep::coordinator {
namespace {

// The call while it is waited for; the alarm may go off when it is over.
struct Watched {
  absl::Mutex mu;
  grpc::ServerContext* call ABSL_GUARDED_BY(mu) = nullptr;
};

}  // namespace

bool InTime(grpc::ServerContext* call, absl::Duration patience, absl::FunctionRef<bool()> io) {
  const auto watched = std::make_shared<Watched>();
  {
    absl::MutexLock lock(&watched->mu);
    watched->call = call;
  }
  grpc::Alarm alarm;
  alarm.Set(gpr_time_from_millis(absl::ToInt64Milliseconds(patience), GPR_TIMESPAN),
            [watched](bool went_off) {
              absl::MutexLock lock(&watched->mu);
              if (went_off && watched->call != nullptr) watched->call->TryCancel();
            });
  const bool done = io();
  absl::MutexLock lock(&watched->mu);
  watched->call = nullptr;
  return done;
}

}  // namespace lockstep::coordinator
