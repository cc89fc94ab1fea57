// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/in_time.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lockstep::coordinator {
namespace {

// How the call is ended while it is waited for; the alarm may go off when it is over.
struct Watched {
  absl::Mutex mu;
  std::function<void()> cancel ABSL_GUARDED_BY(mu);
};

}  // namespace

bool InTime(std::function<void()> cancel, absl::Duration patience, absl::FunctionRef<bool()> io) {
  const auto watched = std::make_shared<Watched>();
  {
    absl::MutexLock lock(&watched->mu);
    watched->cancel = std::move(cancel);
  }
  grpc::Alarm alarm;
  alarm.Set(gpr_time_from_millis(absl::ToInt64Milliseconds(patience), GPR_TIMESPAN),
            [watched](bool went_off) {
              absl::MutexLock lock(&watched->mu);
              if (went_off && watched->cancel != nullptr) watched->cancel();
            });
  const bool done = io();
  absl::MutexLock lock(&watched->mu);
  watched->cancel = nullptr;
  return done;
}

}  // namespace lockstep::coordinator
