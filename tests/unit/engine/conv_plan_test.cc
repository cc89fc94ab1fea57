// SPDX-License-Identifier: Apache-2.0
// What a convolution's nodes do on a GPU, from their types.
#include "engine/cuda/conv_plan.h"

#include <gtest/gtest.h>

#include <string_view>

#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// Images of three channels have patches of 27 numbers; rows of 16-bit numbers are whole 16 bytes.
TEST(ConvPlanTest, RowsOfPatchesAreWhole16Bytes) {
  for (const char* precision : {"fp32", "bf16"}) {
    TrainSpec spec = NormedCnn();
    spec.device = DeviceKind::kCuda;
    spec.precision = precision;
    const auto plan = CompiledPlan::Make(spec).value();
    int stems = 0;
    for (const Node& node : plan->train().graph.nodes()) {
      if (std::string_view(node.op->name) != "conv2d") continue;
      const cuda::ConvPlan conv(plan->train().graph, node, cuda::ConvPart::kForward);
      if (conv.patch() != 27) continue;
      ++stems;
      EXPECT_EQ(conv.pitch(), std::string_view(precision) == "bf16" ? 32 : 27);
      EXPECT_EQ(conv.filters().pitch, 0);
      EXPECT_EQ(conv.padded_filters().pitch, conv.pitch());
      EXPECT_GE(conv.scratch_bytes(),
                static_cast<size_t>(conv.g.filters + conv.block * conv.pixels()) *
                    static_cast<size_t>(conv.pitch()) * (conv.factors == cuda::Type::kF32 ? 4 : 2));
    }
    EXPECT_EQ(stems, 1);
  }
}

}  // namespace
}  // namespace lockstep::engine
