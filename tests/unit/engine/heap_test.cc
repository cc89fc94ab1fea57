// SPDX-License-Identifier: Apache-2.0
// A thousand steps of every kind of model: after the first one nothing asks for memory, and as much
// is in use after the last as after the second. The arena is used up to its last byte, and not
// beyond.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/heap_watch.h"
#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

using Kind = LayerSpec::Kind;

struct Case {
  const char* name;
  TrainSpec (*spec)();
};

// Everything that a step may do beside the sums themselves.
TrainSpec Base() {
  TrainSpec spec = SmallMlp();
  spec.micro_batch = 2;
  spec.accumulate = 2;
  spec.shards = 2;
  spec.eval_block = 3;
  spec.clip_norm = 1;
  spec.ema_decay = 0.99;
  spec.label_smoothing = 0.1;
  spec.schedule.kind = ScheduleSpec::Kind::kCosine;
  spec.schedule.total_updates = 1000;
  return spec;
}
TrainSpec MlpCase() {
  TrainSpec spec = Base();
  spec.model = MlpSpec{{9}, 0.2};
  return spec;
}
TrainSpec CnnCase() {
  TrainSpec spec = Base();
  spec.model = CnnSpec{.channels = {3}, .batch_norm = true, .hidden = {7}, .dropout = 0.2};
  spec.input = ClassificationInput({2, 6, 6}, 10);
  spec.optimizer = AdamSpec{.decoupled = true};
  return spec;
}
TrainSpec ResnetCase() {
  TrainSpec spec = Base();
  spec.model = ResnetSpec{.depth = 18, .stem = "cifar", .zero_init = false, .width = 2};
  spec.input = ClassificationInput({3, 8, 8}, 10);
  return spec;
}
TrainSpec LayersCase() {
  TrainSpec spec = CnnCase();
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 4, .kernel = 3},
                           {.kind = Kind::kLayerNorm},
                           {.kind = Kind::kGelu},
                           {.kind = Kind::kDropout, .rate = 0.2},
                           {.kind = Kind::kGlobalAveragePool},
                           {.kind = Kind::kLinear}}};
  spec.optimizer = LambSpec{};
  return spec;
}
TrainSpec GptCase() {
  TrainSpec spec = Base();
  GptSpec& gpt = spec.model.emplace<GptSpec>();
  gpt.layers = gpt.heads = 2;
  gpt.width = 8;
  gpt.vocab = 16;
  gpt.dropout = 0.2;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {5}, 10}, {"labels", type, {5}, 10}}, 10};
  spec.optimizer = MuonSpec{};
  return spec;
}
TrainSpec BertCase() {
  TrainSpec spec = GptCase();
  BertSpec& bert = spec.model.emplace<BertSpec>();
  bert.preset = "bert-tiny";
  bert.layers = 1;
  bert.heads = 2;
  bert.width = 8;
  bert.dropout = 0.2;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {5}, 10}, {"segments", type, {5}, 2}, {"labels", type, {5}, 10}},
                10};
  spec.optimizer = AdamSpec{};
  return spec;
}
TrainSpec ClassifierCase() {
  TrainSpec spec = BertCase();
  spec.input.fields[2] = {"labels", FieldSpec::Type::kInt32, {}, 10};
  return spec;
}

constexpr Case kCases[] = {
    {"mlp", MlpCase}, {"cnn", CnnCase},   {"resnet", ResnetCase},        {"layers", LayersCase},
    {"gpt", GptCase}, {"bert", BertCase}, {"classifier", ClassifierCase}};

// Fields of a batch: the same for all steps.
struct Batch {
  explicit Batch(const TrainSpec& spec) {
    const int64_t samples = std::max(spec.micro_batch, spec.eval_block);
    for (const FieldSpec& field : spec.input.fields) {
      words.emplace_back(static_cast<size_t>(samples * field.elements()));
      for (size_t i = 0; i < words.back().size(); ++i) {
        const uint64_t bits = MixBits(i * 31 + words.size());
        if (field.type == FieldSpec::Type::kInt32) {
          words.back()[i] = static_cast<uint32_t>(bits % static_cast<uint64_t>(field.limit));
        } else {
          const float value = UniformFloat(static_cast<uint32_t>(bits)) - 0.5f;
          std::memcpy(&words.back()[i], &value, sizeof(value));
        }
      }
    }
    for (const auto& field : words) fields.push_back(field.data());
  }
  std::vector<std::vector<uint32_t>> words;
  std::vector<const void*> fields;
};

TEST(HeapWatchTest, SeesEveryAllocation) {
  const HeapState before = HeapNow();
  auto values = std::make_unique<std::vector<int>>(100);
  const HeapState inside = HeapNow();
  EXPECT_EQ(inside.calls, before.calls + 2);
  EXPECT_GE(inside.live_bytes, before.live_bytes + 400);
  values.reset();
  EXPECT_EQ(HeapNow().live_bytes, before.live_bytes);
}

class HeapTest : public testing::TestWithParam<Case> {
 protected:
  HeapTest()
      : job_(GetParam().spec()),
        batch_(job_.plan->spec()),
        left_(static_cast<size_t>(job_.plan->gradient_count()) * 4),
        right_(static_cast<size_t>(job_.plan->gradient_count()) * 4) {
    hooks_.before_gradients = [] { return absl::OkStatus(); };
    hooks_.bucket_ready = [](int) { return absl::OkStatus(); };
    hooks_.cancelled = [] { return false; };
  }
  void Step(int64_t step) {
    const TrainSpec& spec = job_.plan->spec();
    for (int shard = 0; shard < 2; ++shard) {
      float* const gradients = (shard == 0 ? left_ : right_).floats();
      for (int micro = 0; micro < spec.accumulate; ++micro) {
        const absl::Status status =
            job_.executor->RunShard(step, shard, micro, batch_.fields, gradients, hooks_);
        LS_CHECK(status.ok()) << status;
      }
    }
    const int64_t count = job_.plan->gradient_count();
    for (int64_t i = 0; i < count; ++i) left_.floats()[i] += right_.floats()[i];
    const GradientSlice slice{0, count, left_.floats()};
    const StepResult result = job_.executor->Update(step, absl::MakeConstSpan(&slice, 1)).value();
    LS_CHECK(result.finite && !result.skipped) << step;
    if (step % 100 != 0) return;
    EvalSums sums;
    LS_CHECK(job_.executor->Evaluate(batch_.fields, 3, &sums, Weights::kAverage).ok());
  }

  Job job_;
  Batch batch_;
  Pages left_, right_;
  Executor::Hooks hooks_;
};

TEST_P(HeapTest, AThousandStepsAskForNoMemory) {
  Step(1);
  const HeapState first = HeapNow();
  Step(2);
  const HeapState second = HeapNow();
  EXPECT_EQ(second.calls, first.calls);
  for (int64_t step = 3; step <= 1000; ++step) Step(step);
  const HeapState last = HeapNow();
  EXPECT_EQ(last.calls, second.calls);
  EXPECT_EQ(last.live_bytes, second.live_bytes);
}

// Bytes of the arena that a call has written: those that are not what they were filled with, by
// two fillings, since a value may look like one.
class Touched {
 public:
  Touched(Pages* arena, size_t bytes, size_t beyond)
      : arena_(static_cast<unsigned char*>(arena->data())), bytes_(bytes), all_(bytes + beyond) {}
  // The end of the last byte that `run` wrote; expects none beyond `bytes`.
  size_t HighWater(const std::function<void()>& run) {
    size_t high = 0;
    for (const unsigned char filling : {0xA5, 0x5A}) {
      std::memset(arena_, filling, all_);
      run();
      for (size_t i = 0; i < all_; ++i) {
        if (arena_[i] != filling) high = std::max(high, i + 1);
      }
    }
    EXPECT_LE(high, bytes_);
    return high;
  }

 private:
  unsigned char* const arena_;
  const size_t bytes_;
  const size_t all_;
};

TEST_P(HeapTest, TheArenasHighWaterMarkIsThePlans) {
  const size_t planned = job_.plan->arena_bytes();
  // Pages has a page more than was asked for: what lies there stays as it is.
  Touched touched(&job_.arena, planned, 4096);
  int64_t step = 0;
  const size_t training = touched.HighWater([&] { Step(++step); });
  const size_t evaluation = touched.HighWater([&] {
    EvalSums sums;
    ASSERT_TRUE(job_.executor->Evaluate(batch_.fields, 3, &sums).ok());
  });
  // Offsets are rounded up to 64 bytes, and what a kernel may use of its workspace depends on the
  // number of its threads.
  EXPECT_GT(std::max(training, evaluation) + 64, planned);
}

INSTANTIATE_TEST_SUITE_P(All, HeapTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::engine
