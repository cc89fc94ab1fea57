// SPDX-License-Identifier: Apache-2.0
#include "worker/step/eval_tracker.h"

#include <cmath>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

EvalResult Eval(int64_t step, double loss, double accuracy) {
  EvalResult eval;
  eval.set_step(step);
  eval.set_loss(loss);
  eval.set_accuracy(accuracy);
  return eval;
}

TEST(EvalTracker, KeepsTheBestAndCountsTheOthers) {
  Train train;
  train.mutable_best()->set_metric("accuracy");
  train.mutable_early_stop()->set_metric("loss");
  train.mutable_early_stop()->set_patience(2);
  engine::Tracking t = TrackEval(train, Eval(10, 0.5, 0.8), {});
  EXPECT_EQ(t.best_step, 10);
  EXPECT_EQ(t.stop_count, 0);
  t = TrackEval(train, Eval(20, 0.6, 0.9), t);
  EXPECT_EQ(t.best_step, 20);
  EXPECT_EQ(t.stop_count, 1);
  EXPECT_FALSE(StopsEarly(train, t));
  t = TrackEval(train, Eval(30, 0.4, 0.9), t);  // an equal accuracy is not better
  EXPECT_EQ(t.best_step, 20);
  EXPECT_EQ(t.stop_step, 30);
  EXPECT_EQ(t.stop_count, 0);
  t = TrackEval(train, Eval(40, 0.4, 0.9), t);
  t = TrackEval(train, Eval(50, std::nan(""), 0.9), t);
  EXPECT_TRUE(StopsEarly(train, t));
  EXPECT_EQ(t.evaluated_step, 50);
}

TEST(EvalTracker, AnEvaluationDoneAgainCountsOnce) {
  Train train;
  train.mutable_early_stop()->set_patience(2);
  train.mutable_early_stop()->set_metric("loss");
  const engine::Tracking first = TrackEval(train, Eval(10, 0.5, 0), {});
  const engine::Tracking second = TrackEval(train, Eval(20, 0.6, 0), first);
  const engine::Tracking again = TrackEval(train, Eval(20, 0.6, 0), second);
  EXPECT_EQ(again.stop_count, 1);
  EXPECT_EQ(again.evaluated_step, 20);
}

TEST(EvalTracker, NeedsMoreThanTheDeltaAndReadsTheAverage) {
  Train train;
  train.mutable_early_stop()->set_patience(1);
  train.mutable_early_stop()->set_metric("ema_accuracy");
  train.mutable_early_stop()->set_min_delta(0.01);
  train.mutable_best()->set_metric("ema_loss");
  EXPECT_TRUE(BestIsOfAverage(train));
  EvalResult eval = Eval(10, 9, 0);
  *eval.mutable_ema() = Eval(0, 0.5, 0.70);
  engine::Tracking t = TrackEval(train, eval, {});
  EXPECT_EQ(t.best, -0.5);
  eval = Eval(20, 1, 1);
  *eval.mutable_ema() = Eval(0, 0.6, 0.705);
  t = TrackEval(train, eval, t);
  EXPECT_EQ(t.best_step, 10);
  EXPECT_TRUE(StopsEarly(train, t));
}

TEST(EvalTracker, WhatIsBestByAnotherMetricIsNone) {
  Train before;
  before.mutable_best()->set_metric("accuracy");
  before.mutable_early_stop()->set_metric("accuracy");
  engine::Tracking saved = TrackEval(before, Eval(10, 0.5, 0.8), {});
  saved = TrackEval(before, Eval(20, 0.4, 0.7), saved);
  const engine::Tracking same = GoOnTracking(before, before, false, saved);
  EXPECT_EQ(same.best_step, 10);
  EXPECT_EQ(same.stop_count, 1);
  EXPECT_EQ(GoOnTracking(Train(), before, false, saved).best_step, 0)
      << "its weights are kept no more";
  Train train = before;
  train.mutable_early_stop()->set_metric("loss");
  engine::Tracking now = GoOnTracking(train, before, false, saved);
  EXPECT_EQ(now.best, 0.8);
  EXPECT_EQ(now.stop_step, 0);
  EXPECT_EQ(now.stop_count, 0);
  EXPECT_EQ(now.evaluated_step, 20);
  train.mutable_best()->set_metric("loss");
  now = TrackEval(train, Eval(30, 0.6, 0.1), GoOnTracking(train, before, false, saved));
  EXPECT_EQ(now.best, -0.6);
  EXPECT_EQ(now.best_step, 30);
  EXPECT_EQ(now.stop_step, 30);
}

TEST(EvalTracker, WhatIsBestOfOtherDataIsNone) {
  Train train;
  train.mutable_best()->set_metric("loss");
  train.mutable_early_stop()->set_metric("loss");
  train.mutable_early_stop()->set_patience(1);
  engine::Tracking saved = TrackEval(train, Eval(10, 0.1, 0.8), {});
  saved = TrackEval(train, Eval(20, 0.2, 0.7), saved);
  ASSERT_TRUE(StopsEarly(train, saved));
  EXPECT_TRUE(StopsEarly(train, GoOnTracking(train, train, false, saved)));
  engine::Tracking now = GoOnTracking(train, train, true, saved);
  EXPECT_FALSE(StopsEarly(train, now));
  // That of the step that it goes on after counts.
  now = TrackEval(train, Eval(20, 0.9, 0.1), now);
  EXPECT_EQ(now.best_step, 20);
  EXPECT_EQ(now.stop_step, 20);
}

TEST(EvalTracker, WithoutTheKeysNothingIsDecided) {
  const Train train;
  const engine::Tracking t = TrackEval(train, Eval(10, 0.5, 0.5), {});
  EXPECT_EQ(t.best_step, 0);
  EXPECT_FALSE(StopsEarly(train, t));
}

}  // namespace
}  // namespace lockstep::worker
