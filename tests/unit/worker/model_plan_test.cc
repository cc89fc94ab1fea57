// SPDX-License-Identifier: Apache-2.0
// Every model that a job can name is one of the engine's, and each of its fields gets there.
#include "worker/setup/model_plan.h"

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Writes a spec down, field by field.
struct Writer {
  std::string text;

  void operator()(const char* name, const std::vector<int64_t>* values) {
    absl::StrAppend(&text, name, " [", absl::StrJoin(*values, " "), "]\n");
  }
  void operator()(const char* name, const std::vector<engine::LayerSpec>* layers) {
    absl::StrAppend(&text, name, " of ", layers->size(), "\n");
  }
  template <typename T>
  void operator()(const char* name, const T* value) {
    absl::StrAppend(&text, name, " ", *value, "\n");
  }
};

std::string Text(const Model& model) {
  engine::ModelSpec spec = ModelSpecOf(model).value();
  Writer writer;
  std::visit(
      [&writer](auto& fields) {
        writer.text = absl::StrCat(fields.kName, "\n");
        fields.VisitFields(writer);
      },
      spec);
  return writer.text;
}

// A value that is no model's default.
void Set(Message* message, const FieldDescriptor& field) {
  const auto& reflection = *message->GetReflection();
  if (field.is_repeated() && field.message_type() != nullptr) {
    reflection.AddMessage(message, &field);
    return;
  }
  if (field.is_repeated()) return reflection.AddInt64(message, &field, 77);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, &field, 77);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, &field, 77);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, &field, 0.77);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, &field, "other");
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, &field,
                                !(field.has_presence() && field.name() == "tied_head"));
    default:
      FAIL() << field.full_name() << ": set it here";
  }
}

TEST(ModelSpecOf, TakesEachFieldOfEachModel) {
  const auto& kinds = *Model::descriptor()->FindOneofByName("kind");
  EXPECT_EQ(kinds.field_count(), std::variant_size_v<engine::ModelSpec>);
  for (int k = 0; k < kinds.field_count(); ++k) {
    Model model;
    Message* message = model.GetReflection()->MutableMessage(&model, kinds.field(k));
    const std::string before = Text(model);
    EXPECT_EQ(before.substr(0, before.find('\n')), kinds.field(k)->name());
    for (int f = 0; f < message->GetDescriptor()->field_count(); ++f) {
      const FieldDescriptor& field = *message->GetDescriptor()->field(f);
      message->Clear();
      Set(message, field);
      EXPECT_NE(Text(model), before) << field.full_name();
    }
  }
}

TEST(ModelSpecOf, LeavesWhatTheJobDoesNotSayAtTheModelsDefaults) {
  Model model;
  model.mutable_cnn()->add_hidden(5);
  EXPECT_EQ(Text(model), "cnn\nchannels [32 64]\nkernel 3\nbatch_norm 0\nhidden [5]\ndropout 0\n");
  model.mutable_gpt()->set_dropout(0);
  EXPECT_EQ(Text(model),
            "gpt\npreset gpt2\nlayers 0\nheads 0\nwidth 0\ncontext 0\nvocab 0\ndropout 0\n"
            "tied_head 1\n");
  model.mutable_resnet();
  EXPECT_EQ(Text(model), "resnet\ndepth 18\nstem imagenet\nzero_init 0\nwidth 64\n");
}

TEST(ModelSpecOf, ReadsLayersInLayers) {
  Model model;
  Layer* residual = model.mutable_layers()->add_sequence();
  residual->mutable_residual()->add_body()->mutable_linear()->set_features(7);
  const engine::ModelSpec spec = ModelSpecOf(model).value();
  const auto& sequence = std::get<engine::LayersSpec>(spec).sequence;
  ASSERT_EQ(sequence.size(), 1);
  ASSERT_EQ(sequence[0].body.size(), 1);
  EXPECT_EQ(sequence[0].body[0].width, 7);
}

TEST(ModelSpecOf, RefusesAJobWithoutAModel) {
  EXPECT_EQ(ModelSpecOf(Model()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::worker
