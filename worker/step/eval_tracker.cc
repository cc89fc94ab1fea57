// SPDX-License-Identifier: Apache-2.0
#include "worker/step/eval_tracker.h"

#include <cmath>
#include <string>

#include "absl/strings/match.h"

namespace lockstep::worker {
namespace {

// "loss", "accuracy", "ema_loss", "ema_accuracy"; higher is better in what is returned.
double Merit(const EvalResult& eval, const std::string& metric) {
  const EvalResult& source = absl::StartsWith(metric, "ema_") ? eval.ema() : eval;
  return absl::EndsWith(metric, "loss") ? -source.loss() : source.accuracy();
}

// A merit that is not a number never improves, and any number improves on none.
bool Improves(double merit, double best, bool any, double delta) {
  if (std::isnan(merit)) return false;
  return !any || merit - best > delta;
}

}  // namespace

engine::Tracking TrackEval(const Train& train, const EvalResult& eval,
                           const engine::Tracking& before) {
  engine::Tracking after = before;
  if (eval.step() <= before.evaluated_step) return after;
  after.evaluated_step = eval.step();
  if (train.has_best()) {
    const double merit = Merit(eval, train.best().metric());
    if (Improves(merit, before.best, before.best_step > 0, 0)) {
      after.best = merit;
      after.best_step = eval.step();
    }
  }
  if (train.has_early_stop()) {
    const EarlyStop& stop = train.early_stop();
    const double merit = Merit(eval, stop.metric());
    if (Improves(merit, before.stop_best, before.stop_step > 0, stop.min_delta())) {
      after.stop_best = merit;
      after.stop_step = eval.step();
      after.stop_count = 0;
    } else {
      ++after.stop_count;
    }
  }
  return after;
}

engine::Tracking GoOnTracking(const Train& train, const Train& before, bool other_data,
                              const engine::Tracking& tracking) {
  if (other_data) return {};
  engine::Tracking after = tracking;
  if (!train.has_best() || train.best().metric() != before.best().metric()) {
    after.best = 0;
    after.best_step = 0;
  }
  if (train.has_early_stop() && train.early_stop().metric() != before.early_stop().metric()) {
    after.stop_best = 0;
    after.stop_step = 0;
    after.stop_count = 0;
  }
  return after;
}

bool StopsEarly(const Train& train, const engine::Tracking& tracking) {
  return train.has_early_stop() && tracking.stop_count >= train.early_stop().patience();
}

bool BestIsOfAverage(const Train& train) { return absl::StartsWith(train.best().metric(), "ema_"); }

}  // namespace lockstep::worker
