# SPDX-License-Identifier: Apache-2.0
import unittest

from check_layers import LAYERS, check_clock, check_file, check_include, check_math, owner


class CheckLayersTest(unittest.TestCase):
    def allowed(self, path, header):
        self.assertIsNone(check_include(path, header), f"{path} -> {header}")

    def rejected(self, path, header, part):
        reason = check_include(path, header)
        self.assertIsNotNone(reason, f"{path} -> {header}")
        self.assertIn(part, reason)

    def test_edges_of_the_table_are_allowed(self):
        self.allowed("collectives/shm/arena.cc", "common/fd.h")
        self.allowed("engine/ops/linear.cc", "engine/graph/node.h")
        self.allowed("job/job_file.cc", "yaml-cpp/yaml.h")
        self.allowed("worker/train_loop.cc", "engine/engine.h")
        self.allowed("worker/train_loop.cc", "collectives/communicator.h")
        self.allowed("worker/session.cc", "coordinator/client/client.h")
        self.allowed("launcher/submit.cc", "job/job_file.h")
        self.allowed("coordinator/service/server.cc", "grpcpp/grpcpp.h")
        self.allowed("coordinator/service/server.cc", "coordinator/core/state.h")
        self.allowed("common/status.cc", "absl/status/status.h")
        self.allowed("common/status.cc", "vector")

    def test_deadlines_are_not_of_the_wall_clock(self):
        for line in ("  if (absl::Now() > deadline) return;", "  mu_.AwaitWithTimeout(condition, timeout);",
                     "  cv.WaitWithDeadline(&mu_, deadline);", "  done.WaitForNotificationWithTimeout(timeout);",
                     "  ::clock_gettime(CLOCK_REALTIME, &now);", "  std::chrono::system_clock::now();",
                     "  const int64_t now = absl::GetCurrentTimeNanos();", "  const time_t now = ::time(nullptr);"):
            self.assertEqual([number for number, _ in check_clock("worker/control/telemetry.cc", "\n" + line)], [2], line)
            self.assertEqual(check_clock("common/log.cc", line), [], "it stamps")
            self.assertEqual(check_clock("tests/unit/common/clock_test.cc", line), [])
        for line in ("  const absl::Time now = Clock::Real()->Now();", "  // absl::Now() would jump",
                     "  wake_.AwaitFor(&mu_, interval_, due);", "  ::clock_gettime(CLOCK_MONOTONIC, &now);"):
            self.assertEqual(check_clock("worker/control/telemetry.cc", line), [], line)

    def test_exponentials_are_not_the_c_librarys(self):
        for line in ("  sum += std::exp(x);", "  y = std::powf(x, 2);", "  y = ::tanh(x);"):
            self.assertEqual([number for number, _ in check_math("worker/commands/predict.cc", "\n" + line)], [2], line)
            self.assertEqual(check_math("launcher/main.cc", line), [])
            self.assertEqual(check_math("tests/unit/engine/math_test.cc", line), [])
        for line in ("  sum += engine::Exp(x);", "  return series::Log1p(f);", "  // std::exp(x) would differ",
                     "  y = std::ldexp(x, 2);"):
            self.assertEqual(check_math("worker/commands/predict.cc", line), [], line)

    def test_the_workers_groups_are_apart(self):
        self.allowed("worker/step/trainer.cc", "worker/state/state_policy.h")
        self.allowed("worker/setup/memory_need.cc", "worker/checkpoint/checkpointer.h")
        self.allowed("worker/worker.cc", "worker/step/trainer.h")
        self.allowed("worker/state/recovery.cc", "worker/state/replica_check.h")
        self.rejected("worker/control/control_link.cc", "worker/step/trainer.h", "worker/control/")
        self.rejected("worker/checkpoint/checkpointer.cc", "worker/setup/memory_need.h", "worker/setup")
        self.rejected("worker/commands/eval.cc", "worker/step/trainer.h", "worker/step")
        self.rejected("worker/step/trainer.cc", "worker/worker.h", "worker/worker.h")

    def test_engine_and_collectives_never_meet(self):
        self.rejected("engine/exec/executor.cc", "collectives/communicator.h", "engine/")
        self.rejected("collectives/shm/reduce.cc", "engine/engine.h", "collectives/")

    def test_coordinator_never_includes_engine_or_launcher(self):
        self.rejected("coordinator/main.cc", "engine/engine.h", "coordinator/")
        self.rejected("coordinator/core/state.cc", "launcher/agent.h", "coordinator/core")

    def test_core_is_free_of_grpc_and_of_its_shells(self):
        self.rejected("coordinator/core/step.cc", "grpcpp/grpcpp.h", "only coordinator/service")
        self.rejected("coordinator/core/step.cc", "proto/coordinator.grpc.pb.h", "only")
        self.rejected("coordinator/core/step.cc", "coordinator/service/server.h", "must not")
        self.rejected("coordinator/client/client.cc", "coordinator/core/state.h", "must not")

    def test_only_job_knows_yaml(self):
        self.rejected("launcher/run.cc", "yaml-cpp/yaml.h", "only job")
        self.rejected("job/meaning/units.cc", "job/schema.h", "must not")
        self.rejected("worker/job_plan.cc", "job/job_file.h", "may include only")
        self.allowed("job/meaning/units.cc", "job/meaning/workers.h")
        self.allowed("worker/job_plan.cc", "job/meaning/defaults.h")
        self.allowed("coordinator/core/context.cc", "job/meaning/defaults.h")

    def test_nothing_depends_on_worker(self):
        for folder in LAYERS:
            if folder != "worker":
                self.rejected(f"{folder}/x.cc", "worker/worker.h", folder)

    def test_launcher_reaches_the_coordinator_through_its_client_alone(self):
        self.rejected("launcher/run.cc", "coordinator/core/state.h", "launcher/")

    def test_product_code_does_not_include_tests(self):
        self.rejected("engine/exec/executor.cc", "tests/support/files.h", "nothing outside")

    def test_tests_may_use_everything(self):
        self.assertEqual(check_file("tests/unit/job/x_test.cc", '#include "engine/engine.h"\n'), [])

    def test_lines_and_other_problems_are_named(self):
        text = '#include <vector>\n\n#  include "engine/engine.h"\n#include "fd.h"\n'
        problems = check_file("common/fd.cc", text)
        self.assertEqual([line for line, _ in problems], [3, 4])
        self.assertIn("root", problems[1][1])
        self.assertEqual(len(check_file("newfolder/x.cc", "")), 1)

    def test_the_longest_row_counts(self):
        self.assertEqual(owner("coordinator/core/x.h", LAYERS), "coordinator/core")
        self.assertEqual(owner("coordinator/main.cc", LAYERS), "coordinator")
        self.assertIsNone(owner("commonly/x.h", LAYERS))


if __name__ == "__main__":
    unittest.main()
