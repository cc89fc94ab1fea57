// SPDX-License-Identifier: Apache-2.0
#include "bench/model_specs.h"

namespace lockstep::bench {
namespace {

using engine::TrainSpec;

constexpr auto kInt32 = FieldSpec::Type::kInt32;
constexpr int64_t kWords = 30522;  // of BERT's vocabulary

void Mlp(TrainSpec* spec) {
  spec->model = engine::MlpSpec{{256}};
  spec->input = engine::ClassificationInput({784}, 10);
}

void Cnn(TrainSpec* spec) {
  spec->model = engine::CnnSpec{.hidden = {}};
  spec->input = engine::ClassificationInput({1, 28, 28}, 10);
}

void Resnet18(TrainSpec* spec) {
  spec->model = engine::ResnetSpec{.depth = 18, .stem = "cifar"};
  spec->input = engine::ClassificationInput({3, 32, 32}, 10);
}

void Resnet50(TrainSpec* spec) {
  spec->model = engine::ResnetSpec{.depth = 50};
  spec->input = engine::ClassificationInput({3, 224, 224}, 1000);
}

void Bert(TrainSpec* spec, bool every_token) {
  constexpr int64_t kLength = 128;
  engine::BertSpec& bert = spec->model.emplace<engine::BertSpec>();
  bert.preset = "bert-mini";
  bert.context = 512;
  const int64_t classes = every_token ? kWords : 2;
  std::vector<int64_t> labels;
  if (every_token) labels.push_back(kLength);
  spec->input = {{{"tokens", kInt32, {kLength}, kWords}, {"labels", kInt32, labels, classes}},
                 classes};
  spec->optimizer = engine::AdamSpec{.lr = 1e-4, .weight_decay = 0.01, .decoupled = true};
}

void Gpt(TrainSpec* spec) {
  constexpr int64_t kLength = 256, kBytes = 256;
  engine::GptSpec& gpt = spec->model.emplace<engine::GptSpec>();
  gpt.layers = gpt.heads = 6;
  gpt.width = 384;
  gpt.dropout = 0;
  spec->input = {{{"tokens", kInt32, {kLength}, kBytes}, {"labels", kInt32, {kLength}, kBytes}},
                 kBytes};
  spec->optimizer = engine::AdamSpec{.lr = 3e-4, .weight_decay = 0.01, .decoupled = true};
}

// GPT-2 as published, on samples of 1024 tokens, its vocabulary padded to a multiple of 128.
void Gpt2(TrainSpec* spec, const char* preset) {
  constexpr int64_t kLength = 1024, kTokens = 50257;
  engine::GptSpec& gpt = spec->model.emplace<engine::GptSpec>();
  gpt.preset = preset;
  gpt.vocab = 50304;
  gpt.dropout = 0;
  spec->input = {{{"tokens", kInt32, {kLength}, kTokens}, {"labels", kInt32, {kLength}, kTokens}},
                 kTokens};
  spec->optimizer =
      engine::AdamSpec{.lr = 6e-4, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = true};
}

// BERT-Large's masked language model with a label for every token: full-length samples. Rows of its
// logits are whole 16 bytes, which the quickest kernels of a GPU want.
void BertLarge(TrainSpec* spec, int64_t length) {
  engine::BertSpec& bert = spec->model.emplace<engine::BertSpec>();
  bert.preset = "bert-large";
  bert.context = 512;
  bert.vocab = 30528;
  spec->input = {{{"tokens", kInt32, {length}, kWords}, {"labels", kInt32, {length}, kWords}},
                 kWords};
  spec->optimizer = engine::AdamSpec{.lr = 1e-4, .weight_decay = 0.01, .decoupled = true};
}

struct Row {
  const char* name;
  int64_t batch;
  void (*fill)(TrainSpec* spec);
};
constexpr Row kRows[] = {
    {"mlp", 64, Mlp},
    {"cnn", 64, Cnn},
    {"resnet18", 64, Resnet18},
    {"resnet50", 32, Resnet50},
    {"bert", 16, [](TrainSpec* spec) { Bert(spec, false); }},
    {"bert-mlm", 16, [](TrainSpec* spec) { Bert(spec, true); }},
    {"gpt", 8, Gpt},
    {"gpt2", 32, [](TrainSpec* spec) { Gpt2(spec, "gpt2"); }},
    {"gpt2-xl", 8, [](TrainSpec* spec) { Gpt2(spec, "gpt2-xl"); }},
    {"bert-large-128", 128, [](TrainSpec* spec) { BertLarge(spec, 128); }},
    {"bert-large-512", 32, [](TrainSpec* spec) { BertLarge(spec, 512); }},
};

}  // namespace

std::optional<TrainSpec> ModelSpecOf(const std::string& name, int64_t batch, int threads) {
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    TrainSpec spec;
    spec.optimizer = engine::SgdSpec{.lr = 0.01, .momentum = 0.9};
    row.fill(&spec);
    spec.micro_batch = spec.eval_block = batch > 0 ? batch : row.batch;
    spec.threads = threads;
    spec.seed = 1;
    return spec;
  }
  return std::nullopt;
}

std::string ModelNames() {
  std::string names;
  for (const Row& row : kRows) names += std::string(names.empty() ? "" : " ") + row.name;
  return names;
}

}  // namespace lockstep::bench
