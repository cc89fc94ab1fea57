// SPDX-License-Identifier: Apache-2.0
// Fusion of activations, sums and pooling into the nodes before them: what is replaced, what is
// not, and that the results are those of the nodes by themselves.
#include "engine/passes/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "common/philox.h"
#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/autodiff.h"
#include "tests/unit/engine/run_graph.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr DType kF32 = DType::kF32;

std::vector<float> Values(int64_t count, uint64_t site) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = MixBits(site * 1000003 + static_cast<uint64_t>(i));
    values.push_back(UniformFloat(static_cast<uint32_t>(bits)) * 2 - 1);
  }
  return values;
}

// A graph whose leaves have values, and the gradients of all leaves but the seed.
class Net {
 public:
  Value Leaf(const std::string& name, const Shape& shape) {
    const TensorType type{kF32, shape};
    tensors_[name] = Values(type.elements(), tensors_.size() + 1);
    const Value leaf = graph_.AddLeaf(ops::kParameter, type, name);
    leaves_.push_back(leaf);
    names_.push_back(name);
    return leaf;
  }
  // Integers from -1 (none) to `classes` - 1, in the memory of floats.
  Value Labels(const std::string& name, int64_t count, int64_t classes) {
    std::vector<float>& bits = tensors_[name];
    for (int64_t i = 0; i < count; ++i) {
      bits.push_back(std::bit_cast<float>(static_cast<int32_t>(i * 7 % (classes + 1) - 1)));
    }
    return graph_.AddLeaf(ops::kInput, {DType::kI32, {count}}, name);
  }
  // The seed of what has one element, there from the beginning.
  void AddSeed() {
    seed_ = graph_.AddLeaf(ops::kInput, {kF32, {1}}, "seed");
    tensors_["seed"] = {0.37f};
  }
  Value Add(const OpDef& op, std::vector<Value> inputs, Attrs attrs = {}) {
    return graph_.Add(op, std::move(inputs), std::move(attrs));
  }
  // Without the last one when `differentiate` is false. `y` is an output too.
  Graph Finish(Value y, bool differentiate = true) {
    EXPECT_TRUE(graph_.status().ok()) << graph_.status();
    const TensorType type = graph_.type(y);
    if (!seed_.valid()) {
      seed_ = graph_.AddLeaf(ops::kInput, type, "seed");
      tensors_["seed"] = Values(type.elements(), 99);
    }
    graph_.AddOutput("y", y);
    if (differentiate) {
      const auto gradients = Differentiate(&graph_, {{y, seed_}}, leaves_);
      EXPECT_TRUE(gradients.ok()) << gradients.status();
      for (size_t i = 0; i < names_.size(); ++i) graph_.AddOutput("d" + names_[i], (*gradients)[i]);
    }
    EXPECT_TRUE(graph_.Verify().ok()) << graph_.Verify();
    return graph_;
  }
  Graph* graph() { return &graph_; }
  const Tensors& tensors() const { return tensors_; }

 private:
  Graph graph_;
  Value seed_;
  std::vector<Value> leaves_;
  std::vector<std::string> names_;
  Tensors tensors_;
};

int Count(const Graph& graph, const OpDef& op) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += node.op == &op ? 1 : 0;
  return count;
}

// Runs both graphs; `tolerance` 0 asks for the same bits.
void ExpectSame(const Graph& plain, const Graph& fused, const Tensors& tensors, float tolerance) {
  ASSERT_TRUE(fused.Verify().ok()) << fused.Verify();
  const Tensors a = RunGraph(plain, tensors), b = RunGraph(fused, tensors);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const std::vector<float>& other = b.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_FALSE(std::isnan(values[i])) << name;
      ASSERT_NEAR(values[i], other[i], tolerance * (1 + std::fabs(values[i]))) << name << " " << i;
    }
  }
}

// Origins of values that the graph before has no value for name nothing of it.
void ExpectOriginsApart(const Graph& plain, const Graph& fused) {
  std::set<Value> seen;
  for (int id = 0; id < static_cast<int>(fused.nodes().size()); ++id) {
    for (int o = 0; o < static_cast<int>(fused.node(id).outputs.size()); ++o) {
      const Value origin = fused.Origin({id, o});
      EXPECT_TRUE(seen.insert(origin).second) << "%" << id << " and another have one origin";
      if (origin.node < 0) continue;
      ASSERT_LT(origin.node, static_cast<int>(plain.nodes().size()));
      EXPECT_EQ(fused.type({id, o}), plain.type(origin)) << "%" << id << "." << o;
    }
  }
}

// act(x W^T + b) V^T in one of its forms.
Value TwoLayers(Net* net, const OpDef& op, const Attrs& attrs, bool in_out) {
  Attrs product;
  if (in_out) product.Set("in_out", int64_t{1});
  const auto weight = [&](const std::string& name, int64_t in, int64_t out) {
    return net->Leaf(name, in_out ? Shape{in, out} : Shape{out, in});
  };
  const Value x = net->Leaf("x", {37, 19});
  const Value z = net->Add(ops::kLinear, {x, weight("w", 19, 70), net->Leaf("b", {70})}, product);
  return net->Add(ops::kLinear, {net->Add(op, {z}, attrs), weight("v", 70, 21)}, product);
}

// A block of the model ends where its last value is left: with a relu that takes it in.
TEST(FusionTest, LeavesTheBordersOfBlocks) {
  const Attrs window = {{"padding", Shape{1, 1}}};
  for (const OpDef* op : {&ops::kLinear, &ops::kConv2d, &ops::kBatchNorm}) {
    for (const bool twice : {false, true}) {
      Net net;
      const bool linear = op == &ops::kLinear;
      Value x = linear ? net.Leaf("x", {6, 8}) : net.Leaf("x", {2, 6, 5, 8});
      for (const std::string layer : {"0", "1"}) {
        std::vector<Value> operands = {x};
        if (linear) operands.push_back(net.Leaf("w" + layer, {8, 8}));
        if (op == &ops::kConv2d) operands.push_back(net.Leaf("w" + layer, {8, 8, 3, 3}));
        if (op == &ops::kBatchNorm) operands.push_back(net.Leaf("g" + layer, {8}));
        operands.push_back(net.Leaf("b" + layer, {8}));
        const Attrs attrs = linear ? Attrs() : op == &ops::kConv2d ? window : Attrs{{"eps", 1e-5}};
        x = net.Add(*op, operands, attrs);
        net.graph()->AddBoundary(x);
        x = net.Add(ops::kRelu, {x});
        if (twice) net.graph()->AddBoundary(x);  // which is the same one then
      }
      const Graph plain = net.Finish(x);
      const Graph fused = Fuse(plain);
      EXPECT_EQ(Count(fused, ops::kRelu), 0);
      ASSERT_EQ(fused.boundaries().size(), 2u) << op->name;
      for (const Value& border : fused.boundaries()) {
        EXPECT_EQ(fused.node(border.node).op, op);
        EXPECT_EQ(fused.node(border.node).attrs.String("activation"), "relu");
      }
    }
  }
}

TEST(ActivationFusionTest, GivesTheBitsOfTheNodesByThemselves) {
  const Attrs erf = {{"approximate", std::string("none")}};
  const Attrs tanh = {{"approximate", std::string("tanh")}};
  struct Form {
    const OpDef& op;
    const OpDef& backward;
    Attrs attrs;
  };
  const Form forms[] = {{ops::kGelu, ops::kGeluBackward, erf},
                        {ops::kGelu, ops::kGeluBackward, tanh},
                        {ops::kSilu, ops::kSiluBackward, {}}};
  for (const auto& [op, op_backward, attrs] : forms) {
    for (const bool in_out : {false, true}) {
      for (const bool backward : {false, true}) {
        SCOPED_TRACE(absl::StrCat(op.name, " ", attrs.ToString()));
        Net net;
        const Graph plain = net.Finish(TwoLayers(&net, op, attrs, in_out), backward);
        const Graph fused = Fuse(plain, {.activations = true});
        // Its gradient reads what it takes: then that is kept, and nothing changes.
        EXPECT_EQ(Count(fused, op), backward ? 1 : 0);
        EXPECT_EQ(Count(fused, op_backward), backward ? 1 : 0);
        EXPECT_EQ(Count(Fuse(plain), op), 1) << "without the option";
        ExpectSame(plain, fused, net.tensors(), 0);
        ExpectOriginsApart(plain, fused);
      }
    }
  }
}

TEST(ActivationFusionTest, LeavesWhatOthersRead) {
  Net net;  // the activation's operand is an output
  const Value x = net.Leaf("x", {5, 7});
  const Value z = net.Add(ops::kLinear, {x, net.Leaf("w", {9, 7})});
  const Value y = net.Add(ops::kLinear, {net.Add(ops::kGelu, {z}), net.Leaf("v", {3, 9})});
  net.graph()->AddOutput("z", z);
  const Graph plain = net.Finish(y);
  const Graph fused = Fuse(plain, {.activations = true});
  EXPECT_EQ(Count(fused, ops::kGelu), 1);
  ExpectSame(plain, fused, net.tensors(), 0);
}

TEST(EpilogueFusionTest, GivesTheBitsOfTheNodesByThemselves) {
  const Attrs tanh = {{"approximate", std::string("tanh")}};
  for (const bool in_out : {false, true}) {
    Net net;
    const Graph plain = net.Finish(TwoLayers(&net, ops::kGelu, tanh, in_out));
    const Graph fused = Fuse(plain, {.epilogues = {true, true}});
    SCOPED_TRACE(fused.ToText());
    for (const OpDef* gone : {&ops::kGelu, &ops::kGeluBackward, &ops::kBiasBackward}) {
      EXPECT_EQ(Count(fused, *gone), 0) << gone->name;
    }
    EXPECT_THAT(fused.ToText(), HasSubstr(in_out ? "sums=2" : "sums=1"));
    EXPECT_THAT(fused.ToText(), HasSubstr("keep=1"));
    EXPECT_THAT(fused.ToText(), HasSubstr("third=gelu_tanh"));
    ExpectSame(plain, fused, net.tensors(), 0);
    ExpectOriginsApart(plain, fused);
    // Each by itself.
    EXPECT_EQ(Count(Fuse(plain, {.epilogues = {true, false}}), ops::kBiasBackward), 1);
    EXPECT_EQ(Count(Fuse(plain, {.epilogues = {false, true}}), ops::kGeluBackward), 1);
    EXPECT_EQ(Count(Fuse(plain), ops::kBiasBackward), 1);
  }
}

TEST(EpilogueFusionTest, LeavesWhatTheLibraryHasNot) {
  const FusionOptions options = {.epilogues = {true, true}};
  {
    Net net;  // gelu by erf
    const Attrs erf = {{"approximate", std::string("none")}};
    const Graph plain = net.Finish(TwoLayers(&net, ops::kGelu, erf, false));
    EXPECT_EQ(Count(Fuse(plain, options), ops::kGeluBackward), 1);
  }
  const Attrs tanh = {{"approximate", std::string("tanh")}};
  {
    Net net;  // its gradient comes of no product
    const Value x = net.Leaf("x", {5, 7});
    const Value z = net.Add(ops::kLinear, {x, net.Leaf("w", {9, 7})});
    const Graph plain = net.Finish(net.Add(ops::kTanh, {net.Add(ops::kGelu, {z}, tanh)}));
    const Graph fused = Fuse(plain, options);
    EXPECT_EQ(Count(fused, ops::kGelu), 1);
    EXPECT_EQ(Count(fused, ops::kGeluBackward), 1);
    ExpectSame(plain, fused, net.tensors(), 0);
  }
  {
    Net net;  // no gradient: nothing to keep
    const Graph plain = net.Finish(TwoLayers(&net, ops::kGelu, tanh, false), false);
    EXPECT_EQ(Count(Fuse(plain, options), ops::kGelu), 1);
  }
}

TEST(AddendFusionTest, SumsOfGradientsAreMadeInTheProducts) {
  Net net;
  const Value x = net.Leaf("x", {33, 20});
  const Value q = net.Add(ops::kLinear, {x, net.Leaf("wq", {24, 20})});
  const Value k = net.Add(ops::kLinear, {x, net.Leaf("wk", {24, 20})});
  const Value v = net.Add(ops::kLinear, {x, net.Leaf("wv", {24, 20})});
  const Value y =
      net.Add(ops::kAttention, {q, k, v}, {{"heads", int64_t{2}}, {"length", int64_t{11}}});
  const Graph plain = net.Finish(y);
  EXPECT_EQ(Count(plain, ops::kAdd), 2);
  const Graph fused = Fuse(plain, {.addends = true});
  EXPECT_EQ(Count(fused, ops::kAdd), 0);
  EXPECT_EQ(Count(Fuse(plain), ops::kAdd), 2) << "without the option";
  ExpectSame(plain, fused, net.tensors(), 0);
  ExpectOriginsApart(plain, fused);
}

TEST(AddendFusionTest, AResidualIsAddedInTheProduct) {
  for (const bool in_out : {false, true}) {
    Net net;
    Attrs product;
    if (in_out) product.Set("in_out", int64_t{1});
    const Value x = net.Leaf("x", {35, 20});
    const Value h = net.Add(ops::kTanh, {x});
    const Value w = net.Leaf("w", {20, 20});
    const Value y =
        net.Add(ops::kAdd, {x, net.Add(ops::kLinear, {h, w, net.Leaf("b", {20})}, product)});
    const Graph plain = net.Finish(y);
    const Graph fused = Fuse(plain, {.addends = true});
    EXPECT_EQ(Count(fused, ops::kAdd), Count(plain, ops::kAdd) - 1) << fused.ToText();
    ExpectSame(plain, fused, net.tensors(), 0);
    ExpectOriginsApart(plain, fused);
  }
}

struct PoolForm {
  Shape x, weight;
  bool bias, relu;
  int64_t padding;
  bool direct;
};
// Directly and by Winograd's algorithm, odd extents, with and without relu.
const PoolForm kPoolForms[] = {{{3, 8, 10, 1}, {17, 1, 3, 3}, true, true, 1, true},
                               {{2, 9, 7, 2}, {8, 2, 2, 2}, false, false, 0, true},
                               {{4, 9, 11, 16}, {18, 16, 3, 3}, true, true, 1, false},
                               {{4, 12, 8, 17}, {16, 17, 3, 3}, false, false, 1, false}};

Value Pooled(Net* net, const PoolForm& form, Value* conv) {
  std::vector<Value> operands = {net->Leaf("x", form.x), net->Leaf("w", form.weight)};
  if (form.bias) operands.push_back(net->Leaf("b", {form.weight[0]}));
  *conv = net->Add(ops::kConv2d, operands, {{"padding", Shape{form.padding, form.padding}}});
  if (form.relu) *conv = net->Add(ops::kRelu, {*conv});
  return net->Add(ops::kMaxPool2d, {*conv}, {{"kernel", Shape{2, 2}}, {"stride", Shape{2, 2}}});
}

TEST(PoolFusionTest, ChangesRoundingOfTheDirectWeightGradientOnly) {
  for (const PoolForm& form : kPoolForms) {
    for (const bool backward : {false, true}) {
      Net net;
      Value conv;
      const Graph plain = net.Finish(Pooled(&net, form, &conv), backward);
      const Graph fused = Fuse(plain, {.pools = true});
      SCOPED_TRACE(fused.ToText());
      EXPECT_EQ(Count(fused, ops::kConv2dMaxPool), 1);
      for (const OpDef* gone :
           {&ops::kConv2d, &ops::kRelu, &ops::kMaxPool2d, &ops::kMaxPool2dBackward}) {
        EXPECT_EQ(Count(fused, *gone), 0) << gone->name;
      }
      EXPECT_EQ(Count(fused, ops::kConv2dMaxPoolBackwardWeight), backward && form.direct ? 1 : 0);
      EXPECT_EQ(Count(fused, ops::kMaxUnpool2d), backward ? 1 : 0);  // x has a gradient
      EXPECT_EQ(Count(Fuse(plain), ops::kConv2dMaxPool), 0) << "without the option";
      // Sums over pixels are made in another order.
      ExpectSame(plain, fused, net.tensors(), backward ? 2e-6f : 0);
      ExpectOriginsApart(plain, fused);
    }
  }
}

TEST(PoolFusionTest, NothingIsSpreadWhereImagesNeedNoGradient) {
  Net net;
  Value conv;
  const Value pooled = Pooled(&net, kPoolForms[0], &conv);
  Graph graph = *net.graph();
  const Value seed = graph.AddLeaf(ops::kInput, graph.type(pooled), "seed");
  const auto gradients =
      Differentiate(&graph, {{pooled, seed}}, {{graph.Find("w"), 0}, {graph.Find("b"), 0}});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  graph.AddOutput("dw", (*gradients)[0]);
  graph.AddOutput("db", (*gradients)[1]);
  const Graph fused = Fuse(graph, {.pools = true});
  EXPECT_EQ(Count(fused, ops::kMaxUnpool2d), 0);
  EXPECT_EQ(Count(fused, ops::kConv2dMaxPoolBackwardWeight), 1);
  Tensors tensors = net.tensors();
  tensors["seed"] = Values(graph.type(seed).elements(), 99);
  ExpectSame(graph, fused, tensors, 2e-6f);
}

TEST(PoolFusionTest, LeavesWhatOthersRead) {
  for (const PoolForm& form : kPoolForms) {
    Net net;
    Value conv;
    const Value pooled = Pooled(&net, form, &conv);
    net.graph()->AddOutput("unpooled", conv);
    const Graph plain = net.Finish(pooled);
    const Graph fused = Fuse(plain, {.pools = true});
    EXPECT_EQ(Count(fused, ops::kConv2dMaxPool), 0);
    ExpectSame(plain, fused, net.tensors(), 0);
  }
  // Windows that overlap.
  Net net;
  const Value conv =
      net.Add(ops::kConv2d, {net.Leaf("x", {3, 8, 8, 1}), net.Leaf("w", {16, 1, 3, 3})});
  const Value pooled =
      net.Add(ops::kMaxPool2d, {conv}, {{"kernel", Shape{2, 2}}, {"stride", Shape{1, 1}}});
  EXPECT_EQ(Count(Fuse(net.Finish(pooled), {.pools = true}), ops::kConv2dMaxPool), 0);
}

// What a plan is made of: the job decides, by its precision and what the program is for.
TEST(FusionOptionsTest, FollowTheJob) {
  TrainSpec spec = TinyGpt();
  const auto text = [&](ProgramKind kind) {
    const auto plan = CompiledPlan::Make(spec);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return (*plan)->program(kind).graph.ToText();
  };
  EXPECT_THAT(text(ProgramKind::kEvaluation), HasSubstr("activation=gelu_tanh"));
  EXPECT_THAT(text(ProgramKind::kTraining), HasSubstr("gelu_backward("));
  spec.precision = "bf16";
  EXPECT_THAT(text(ProgramKind::kEvaluation), Not(HasSubstr("activation=gelu_tanh")));
  spec.precision = "fp32";
  spec.passes.fuse = false;
  EXPECT_THAT(text(ProgramKind::kEvaluation), Not(HasSubstr("activation=gelu_tanh")));
}

// In rows with and without a label, with smoothing and padded classes, alone and added.
TEST(LossFusionTest, SumsTheGradientOfTheBias) {
  for (const Attrs& attrs :
       {Attrs(), Attrs({{"classes", int64_t{20}}, {"label_smoothing", 0.1}})}) {
    Net net;
    net.AddSeed();
    const Value x = net.Leaf("x", {33, 20});
    const Value logits = net.Add(ops::kLinear, {x, net.Leaf("w", {29, 20}), net.Leaf("b", {29})});
    const Value labels = net.Labels("labels", 33, 20);
    const Graph plain = net.Finish(net.Add(ops::kSoftmaxCrossEntropy, {logits, labels}, attrs));
    ASSERT_EQ(Count(plain, ops::kBiasBackward), 1);
    const Graph both = Fuse(plain);
    EXPECT_EQ(Count(both, ops::kBiasBackward), 1) << "without the option";
    const Graph fused = Fuse(plain, {.loss_bias = true});
    EXPECT_EQ(Count(fused, ops::kBiasBackward), 0);
    EXPECT_EQ(Count(fused, ops::kSoftmaxCrossEntropyWithGradient), 1);
    ExpectSame(both, fused, net.tensors(), 0);
    ExpectSame(plain, fused, net.tensors(), 1e-5f);
    ExpectOriginsApart(plain, fused);
  }
}

// Whole blocks of the weight gradient's sums are whole strips: the same bits then, on any number of
// threads, and in a fraction of the memory.
TEST(HeadFusionTest, GivesTheBitsOfTheNodesByThemselves) {
  for (const bool bias : {false, true}) {
    Net net;
    net.AddSeed();
    const Value x = net.Leaf("x", {512, 20});
    std::vector<Value> operands = {net.Add(ops::kTanh, {x}), net.Leaf("w", {4100, 20})};
    if (bias) operands.push_back(net.Leaf("b", {4100}));
    const Value logits = net.Add(ops::kLinear, operands);
    const Value labels = net.Labels("labels", 512, 4097);
    const Graph plain = net.Finish(net.Add(ops::kSoftmaxCrossEntropy, {logits, labels},
                                           {{"classes", int64_t{4097}}, {"label_smoothing", 0.1}}));
    const Graph both = Fuse(plain);
    EXPECT_EQ(Count(both, ops::kLinearSoftmaxCrossEntropy), 0) << "without the option";
    const Graph fused = Fuse(plain, {.heads = true});
    EXPECT_EQ(Count(fused, ops::kLinearSoftmaxCrossEntropy), 1);
    EXPECT_EQ(Count(fused, ops::kLinear) + Count(fused, ops::kBiasBackward), 0);
    ExpectSame(both, fused, net.tensors(), 0);
    ExpectOriginsApart(plain, fused);
  }
}

TEST(HeadFusionTest, LeavesWhatOthersReadAndWhatIsSmall) {
  const auto fused = [](int64_t rows, int64_t columns, bool read) {
    Net net;
    net.AddSeed();
    const Value logits =
        net.Add(ops::kLinear, {net.Leaf("x", {rows, 3}), net.Leaf("w", {columns, 3})});
    if (read) net.graph()->AddOutput("logits", logits);
    const Value labels = net.Labels("labels", rows, columns);
    const Graph plain = net.Finish(net.Add(ops::kSoftmaxCrossEntropy, {logits, labels}));
    return Count(Fuse(plain, {.heads = true}), ops::kLinearSoftmaxCrossEntropy) == 1;
  };
  EXPECT_TRUE(fused(257, 4096, false));
  EXPECT_FALSE(fused(256, 4096, false));
  EXPECT_FALSE(fused(257, 4095, false));
  EXPECT_FALSE(fused(257, 4096, true));
}

}  // namespace
}  // namespace lockstep::engine
