// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/reconcile.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using Phase = WorkerView::Phase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);

DesiredWorkers Desired(const std::vector<std::string>& incarnations) {
  DesiredWorkers desired;
  for (const std::string& incarnation : incarnations) {
    desired.add_workers()->set_incarnation(incarnation);
  }
  return desired;
}

WorkerView View(const std::string& incarnation, Phase phase) {
  return {.incarnation = incarnation, .job_id = "job", .phase = phase};
}

TEST(ReconcileTest, StartsWhatIsMissingOnce) {
  const auto actions = Reconcile(Desired({"a", "b", "c", "c"}), {View("b", Phase::kRunning)}, kNow);
  EXPECT_THAT(actions.start, ElementsAre(0, 2));
  EXPECT_THAT(actions.terminate, IsEmpty());
  EXPECT_EQ(actions.next, absl::InfiniteFuture());
}

TEST(ReconcileTest, EndsWhatIsNotWantedPolitely) {
  const auto actions = Reconcile(Desired({}), {View("a", Phase::kRunning)}, kNow);
  EXPECT_THAT(actions.terminate, ElementsAre("a"));
  EXPECT_THAT(actions.kill, IsEmpty());
}

TEST(ReconcileTest, KillsAfterTheGrace) {
  WorkerView ending = View("a", Phase::kEnding);
  ending.kill_at = kNow + absl::Seconds(3);
  EXPECT_EQ(Reconcile(Desired({}), {ending}, kNow).next, ending.kill_at);
  EXPECT_THAT(Reconcile(Desired({}), {ending}, kNow).kill, IsEmpty());
  EXPECT_THAT(Reconcile(Desired({}), {ending}, ending.kill_at).kill, ElementsAre("a"));
}

TEST(ReconcileTest, SparesUntilTheTimeUnlessTheyAreNamed) {
  WorkerView spared = View("a", Phase::kRunning);
  spared.spared_until = kNow + absl::Minutes(5);
  const auto before = Reconcile(Desired({}), {spared}, kNow);
  EXPECT_THAT(before.terminate, IsEmpty());
  EXPECT_EQ(before.next, spared.spared_until);
  EXPECT_THAT(Reconcile(Desired({}), {spared}, spared.spared_until).terminate, ElementsAre("a"));
  DesiredWorkers named = Desired({});
  named.add_kill_workers("a");
  EXPECT_THAT(Reconcile(named, {spared}, kNow).kill, ElementsAre("a"));
}

TEST(ReconcileTest, KillJobsAreKilledAtOnce) {
  DesiredWorkers desired = Desired({});
  desired.add_kill_jobs("job");
  WorkerView ending = View("b", Phase::kEnding);
  ending.kill_at = kNow + absl::Seconds(3);
  const auto actions =
      Reconcile(desired, {View("a", Phase::kRunning), ending, View("c", Phase::kKilled)}, kNow);
  EXPECT_THAT(actions.kill, ElementsAre("a", "b"));
  EXPECT_THAT(actions.terminate, IsEmpty());
}

TEST(ReconcileTest, AnExitedWorkerIsNotStartedAgain) {
  WorkerView exited = View("a", Phase::kExited);
  EXPECT_THAT(Reconcile(Desired({"a"}), {exited}, kNow).start, IsEmpty());
  exited.acknowledged = true;  // the wish is older than the acknowledgement
  const auto actions = Reconcile(Desired({"a"}), {exited}, kNow);
  EXPECT_THAT(actions.start, IsEmpty());
  EXPECT_THAT(actions.forget, IsEmpty());
}

TEST(ReconcileTest, ForgetsOnlyWhatIsAcknowledged) {
  WorkerView known = View("a", Phase::kExited);
  known.acknowledged = true;
  const auto actions = Reconcile(Desired({}), {known, View("b", Phase::kExited)}, kNow);
  EXPECT_THAT(actions.forget, ElementsAre("a"));
}

}  // namespace
}  // namespace lockstep::launcher
