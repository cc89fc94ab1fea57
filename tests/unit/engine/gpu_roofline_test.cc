// SPDX-License-Identifier: Apache-2.0
// What a GPU needs for a plan on paper.
#include "engine/cuda/gpu_roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

const RooflineRow* RowOf(const Roofline& roofline, const std::string& op) {
  for (const RooflineRow& row : roofline.rows) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

std::shared_ptr<const Plan> PlanOf(TrainSpec spec, const char* precision) {
  spec.device = DeviceKind::kCuda;
  spec.precision = precision;
  return Plan::Compile(spec).value();
}

TEST(GpuRooflineTest, GpusAreNamedByThemselvesOrTheirArchitecture) {
  EXPECT_EQ(GpuFiguresOf("h200")->bytes, 4.8e12);
  EXPECT_STREQ(GpuFiguresOf("sm_90")->name, "h100");
  EXPECT_STREQ(GpuFiguresOf("sm_100")->name, "b200");
  EXPECT_THAT(std::string(GpuFiguresOf("sm_20").status().message()), HasSubstr("h200 (sm_90)"));
}

TEST(GpuRooflineTest, ARowIsTheSumOfItsNodesBoundByArithmeticOrBytes) {
  const GpuFigures gpu = GpuFiguresOf("h200").value();
  const auto plan = PlanOf(TinyGpt(), "bf16");
  double flops = 0, bytes = 0;
  int products = 0;
  for (const NodeInfo& node : plan->Nodes(ProgramKind::kTraining)) {
    if (node.op != "linear_backward_weight") continue;
    ++products;
    flops += node.flops;
    bytes += node.bytes;
  }
  const Roofline roofline = RooflineOf(*plan, gpu);
  const RooflineRow* const row = RowOf(roofline, "linear_backward_weight");
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->launches, products);
  EXPECT_DOUBLE_EQ(row->flops, flops);
  EXPECT_DOUBLE_EQ(row->least_bytes, bytes);
  EXPECT_DOUBLE_EQ(row->moved_bytes, bytes);
  EXPECT_GE(row->least_seconds * 1.000001, flops / gpu.half_flops);
  EXPECT_GE(row->least_seconds * 1.000001, bytes / gpu.bytes);
  double least = 0;
  for (const RooflineRow& one : roofline.rows) {
    least += one.least_seconds;
    EXPECT_GE(one.moved_bytes, one.least_bytes) << one.op;
    EXPECT_GT(one.seconds, one.least_seconds) << one.op;
  }
  EXPECT_DOUBLE_EQ(roofline.least_seconds, least);
  EXPECT_THAT(RooflineText(roofline, gpu), HasSubstr("linear_backward_weight"));
}

TEST(GpuRooflineTest, WhatIsReadTwiceIsMovedTwice) {
  const GpuFigures gpu = GpuFiguresOf("h200").value();
  const Roofline roofline = RooflineOf(*PlanOf(NormedCnn(), "fp32"), gpu);
  const RooflineRow* const norm = RowOf(roofline, "batch_norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_GT(norm->moved_bytes, norm->least_bytes * 1.3);
  // Images of three channels are convolved by patches, which are written and read.
  const RooflineRow* const conv = RowOf(roofline, "conv2d");
  ASSERT_NE(conv, nullptr);
  EXPECT_GT(conv->moved_bytes, conv->least_bytes);
  const RooflineRow* const update = RowOf(roofline, "update");
  ASSERT_NE(update, nullptr);
  EXPECT_GT(update->moved_bytes, update->least_bytes);
}

// What a group of nodes makes for itself is neither written nor read; rows that nobody asks for are
// not read.
TEST(GpuRooflineTest, ALaunchMovesWhatComesFromElsewhere) {
  const GpuFigures gpu = GpuFiguresOf("h200").value();
  TrainSpec spec = TinyGpt();
  spec.optimizer = MuonSpec{};  // whose update does not write copies of weights
  const auto plan = PlanOf(spec, "bf16");
  double nodes = 0;
  for (const NodeInfo& node : plan->Nodes(ProgramKind::kTraining)) {
    if (node.runs) nodes += node.bytes;
  }
  const Roofline roofline = RooflineOf(*plan, gpu);
  const RooflineRow* const group = RowOf(roofline, "dropout + layer_norm");
  ASSERT_NE(group, nullptr);
  double launches = roofline.update.least_bytes, all = 0;
  for (const RooflineRow& launch : roofline.launches) launches += launch.least_bytes;
  for (const RooflineRow& row : roofline.rows) all += row.least_bytes;
  EXPECT_DOUBLE_EQ(launches, all);
  EXPECT_LT(all - roofline.update.least_bytes, nodes);
  EXPECT_DOUBLE_EQ(roofline.StepSeconds(1), roofline.seconds);
  double once = roofline.update.seconds;
  for (const RooflineRow& launch : roofline.launches) {
    if (launch.once) EXPECT_EQ(launch.op, "cast");
    if (launch.once) once += launch.seconds;
  }
  EXPECT_GT(once, roofline.update.seconds) << "weights are rounded once";
  EXPECT_DOUBLE_EQ(roofline.StepSeconds(3), 3 * (roofline.seconds - once) + once);
}

// The update writes the weights' copies: nothing else makes them, whatever the micro-batches.
TEST(GpuRooflineTest, CopiesOfWeightsAreTheUpdates) {
  const GpuFigures gpu = GpuFiguresOf("h200").value();
  TrainSpec spec = TinyGpt();
  const auto update = [&](const char* precision, bool keeps) {
    spec.passes.keep_constants = keeps;
    const Roofline roofline = RooflineOf(*PlanOf(spec, precision), gpu);
    for (const RooflineRow& launch : roofline.launches) EXPECT_FALSE(launch.once) << launch.op;
    return roofline.update.least_bytes;
  };
  double copied = 0;
  for (const int accumulate : {1, 2}) {
    spec.accumulate = accumulate;
    copied = update("bf16", true) - update("bf16", false);
    // Four matrices and their biases of each block of 24 columns, and the head's.
    EXPECT_EQ(copied, 2 * (3 * (12 * 24 * 24 + 9 * 24) + 32 * 24)) << accumulate;
    EXPECT_EQ(update("fp32", true), update("fp32", false));
  }
}

// What two nodes of a launch read is read once: the gradients of a normalisation, whose sums over
// the rows are written in parts besides.
TEST(GpuRooflineTest, WhatALaunchReadsTwiceIsReadOnce) {
  const auto plan = PlanOf(TinyGpt(), "fp32");
  const Roofline roofline = RooflineOf(*plan, GpuFiguresOf("h200").value());
  const RooflineRow* const both =
      RowOf(roofline, "layer_norm_backward_weight + layer_norm_backward_input");
  ASSERT_NE(both, nullptr);
  const double rows = 4 * 9, columns = 24, matrix = 4 * rows * columns;
  // dy, x, a residual, dx; mean and rstd; gamma, dgamma, dbeta.
  const double least = 4 * matrix + 2 * 4 * rows + 3 * 4 * columns;
  EXPECT_LE(both->least_bytes, least * both->launches);
  EXPECT_GE(both->least_bytes, (least - matrix) * both->launches);
  EXPECT_GT(both->moved_bytes, both->least_bytes);
}

// Logits are read once where two rows fit into a multiprocessor's shared memory.
TEST(GpuRooflineTest, LogitsThatFitAreReadOnce) {
  GpuFigures gpu = GpuFiguresOf("h200").value();
  const auto besides = [&](int64_t vocab) {
    TrainSpec spec = TinyGpt();
    std::get<GptSpec>(spec.model).vocab = vocab;
    const Roofline roofline = RooflineOf(*PlanOf(spec, "bf16"), gpu);
    const RooflineRow* const row = RowOf(roofline, "softmax_cross_entropy_with_gradient");
    return row == nullptr ? -1 : row->moved_bytes - row->least_bytes;
  };
  EXPECT_EQ(besides(32), 0);
  EXPECT_EQ(besides(33), 4 * 9 * 33 * 2) << "odd rows";
  EXPECT_EQ(besides(57344), 0);
  EXPECT_EQ(besides(57352), 4.0 * 9 * 57352 * 2);
  gpu.shared_bytes = 0;
  EXPECT_EQ(besides(32), 4 * 9 * 32 * 2);
}

// Attention without dropout is left to cuDNN, at the speed of products; with dropout our own
// kernels do it, which need more instructions, the more so in the gradient; in fp32, or for heads
// that tensor cores do not take, it is those without tensor cores.
TEST(GpuRooflineTest, AttentionIsCountedAsTheEngineThatDoesIt) {
  const GpuFigures gpu = {"slow", "sm_0", 4e6, 2e6, 1e6, 1e15};
  const auto speed = [&](const char* op, int64_t width, double dropout, const char* precision) {
    TrainSpec spec = TinyGpt();
    std::get<GptSpec>(spec.model).width = width;
    std::get<GptSpec>(spec.model).dropout = dropout;
    const Roofline roofline = RooflineOf(*PlanOf(spec, precision), gpu);
    const RooflineRow* const row = RowOf(roofline, op);
    return row == nullptr ? 0 : row->flops / row->seconds / kProductShare;
  };
  for (const char* op : {"attention", "attention_backward"}) {
    EXPECT_NEAR(speed(op, 32, 0, "bf16"), 4e6, 1);
    EXPECT_NEAR(speed(op, 24, 0.2, "bf16"), 1e6, 1);
    EXPECT_NEAR(speed(op, 32, 0.2, "tf32"), 1e6, 1);
    EXPECT_NEAR(speed(op, 32, 0.2, "fp32"), 1e6, 1);
  }
  // Heads of 16 columns, padded to 32.
  EXPECT_NEAR(speed("attention", 32, 0.2, "bf16"), 4e6 * 0.26 / 2, 1);
  EXPECT_NEAR(speed("attention_backward", 32, 0.2, "bf16"), 4e6 * 0.20 / 2, 1);
}

// On sm_90 the forward pass leaves dropout's bits, which are written and read; on other GPUs they
// are left alone.
TEST(GpuRooflineTest, DropoutsBitsAreCountedWhereTheyAreKept) {
  TrainSpec spec = TinyGpt();
  std::get<GptSpec>(spec.model).width = 128;
  for (FieldSpec& field : spec.input.fields) field.shape = {130};
  const auto row = [&](const char* op, const GpuFigures& gpu, bool keeps) {
    spec.passes.keep_dropout = keeps;
    return *RowOf(RooflineOf(*PlanOf(spec, "bf16"), gpu), op);
  };
  const GpuFigures h200 = GpuFiguresOf("h200").value(), a100 = GpuFiguresOf("a100").value();
  const GpuFigures slow = {"slow", "sm_90", 4e6, 2e6, 1e6, 1e15};
  const double bits = 3 * 4 * 2 * 192 * 192 / 8;  // blocks, sequences, heads, tokens
  for (const char* op : {"attention", "attention_backward"}) {
    EXPECT_EQ(row(op, h200, true).moved_bytes - row(op, h200, false).moved_bytes, bits);
    EXPECT_EQ(row(op, a100, true).moved_bytes, row(op, a100, false).moved_bytes);
    EXPECT_EQ(row(op, a100, true).seconds, row(op, a100, false).seconds);
  }
  EXPECT_GT(row("attention", slow, true).seconds, row("attention", slow, false).seconds);
  EXPECT_LT(row("attention_backward", slow, true).seconds,
            row("attention_backward", slow, false).seconds);
}

// Factors of 10 bits are multiplied in the tensor cores, fp32 is not.
TEST(GpuRooflineTest, ThePeakIsThatOfTheFactors) {
  const GpuFigures gpu = {"slow", "sm_0", 4e6, 2e6, 1e6, 1e15};
  const auto seconds = [&](const char* precision) {
    return RowOf(RooflineOf(*PlanOf(DeepMlp(), precision), gpu), "linear_backward_weight")
        ->least_seconds;
  };
  EXPECT_NEAR(seconds("fp32") / seconds("tf32"), 2, 1e-6);
  EXPECT_NEAR(seconds("tf32") / seconds("bf16"), 2, 1e-6);
}

}  // namespace
}  // namespace lockstep::engine
