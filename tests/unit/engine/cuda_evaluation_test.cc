// SPDX-License-Identifier: Apache-2.0
// What evaluations count on a GPU against the CPU's. On the emulated GPU, or on a real one
// (LOCKSTEP_TEST_GPU=1).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/engine/on_gpu.h"

namespace lockstep::engine {
namespace {

// A row of NaN has no answer, and what lies beside NaN comes after it.
TEST(CudaEvaluationTest, NanIsNeverTheAnswer) {
  for (const int64_t classes : {3, 10}) {
    TrainSpec spec = SmallMlp();
    spec.input = ClassificationInput({31}, classes);
    for (const size_t nans : {size_t{1}, static_cast<size_t>(classes)}) {
      std::array<EvalSums, 2> sums;
      for (const bool gpu : {false, true}) {
        Job job(gpu ? OnGpu(spec) : spec);
        const StateEntry* bias = nullptr;  // of the head
        for (const StateEntry& entry : job.plan->state()) {
          if (entry.role == StateEntry::Role::kParameter) bias = &entry;
        }
        ASSERT_EQ(bias->shape, Shape{classes});
        auto* const state = static_cast<char*>(job.executor->BeginLoad());
        std::fill_n(reinterpret_cast<float*>(state + bias->offset), nans, NAN);
        job.executor->EndLoad();
        const TestBatch batch = MakeBatch(spec, 1, 0, 0, spec.eval_block);
        ASSERT_TRUE(
            job.executor->Evaluate(batch.fields(), spec.eval_block, &sums[gpu ? 1 : 0]).ok());
      }
      EXPECT_EQ(sums[0].correct, 0) << classes << " " << nans;
      EXPECT_EQ(sums[1].correct, 0) << classes << " " << nans;
      EXPECT_EQ(sums[0].correct_top5, sums[1].correct_top5) << classes << " " << nans;
      EXPECT_EQ(sums[0].correct_top5 > 0, nans == 1) << classes;
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
