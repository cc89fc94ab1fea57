// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/model_plan.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "common/check.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "job/meaning/defaults.h"

namespace lockstep::worker {
namespace {

std::vector<engine::LayerSpec> LayerSpecsOf(
    const google::protobuf::RepeatedPtrField<Layer>& layers);

engine::LayerSpec LayerSpecOf(const Layer& layer) {
  using Kind = engine::LayerSpec::Kind;
  engine::LayerSpec spec;
  const auto pool = [&](Kind kind, const PoolLayer& from) {
    spec.kind = kind;
    spec.kernel = from.kernel();
    spec.stride = from.stride();
    spec.padding = from.padding();
  };
  switch (layer.kind_case()) {
    case Layer::kLinear:
      spec.kind = Kind::kLinear;
      spec.width = layer.linear().features();
      spec.bias = !layer.linear().no_bias();
      break;
    case Layer::kConv: {
      const ConvLayer& conv = layer.conv();
      spec.kind = Kind::kConv;
      spec.width = conv.channels();
      spec.kernel = std::max<int64_t>(conv.kernel(), 1);
      spec.stride = conv.stride();
      spec.padding = conv.padding();
      spec.dilation = std::max<int64_t>(conv.dilation(), 1);
      spec.groups = std::max<int64_t>(conv.groups(), 1);
      spec.bias = !conv.no_bias();
      break;
    }
    case Layer::kBatchNorm:
      spec.kind = Kind::kBatchNorm;
      if (layer.batch_norm().eps() > 0) spec.eps = layer.batch_norm().eps();
      if (layer.batch_norm().momentum() > 0) spec.momentum = layer.batch_norm().momentum();
      break;
    case Layer::kMaxPool:
      pool(Kind::kMaxPool, layer.max_pool());
      break;
    case Layer::kAvgPool:
      pool(Kind::kAvgPool, layer.avg_pool());
      break;
    case Layer::kGlobalAvgPool:
      spec.kind = Kind::kGlobalAveragePool;
      break;
    case Layer::kFlatten:
      spec.kind = Kind::kFlatten;
      break;
    case Layer::kResidual:
      spec.kind = Kind::kResidual;
      spec.body = LayerSpecsOf(layer.residual().body());
      spec.shortcut = LayerSpecsOf(layer.residual().shortcut());
      break;
    case Layer::kDropout:
      spec.kind = Kind::kDropout;
      spec.rate = job::DropoutRate(layer.dropout());
      break;
    case Layer::kGelu:
      spec.kind = Kind::kGelu;
      spec.tanh = layer.gelu().approximate() == "tanh";
      break;
    case Layer::kSilu:
      spec.kind = Kind::kSilu;
      break;
    case Layer::kTanh:
      spec.kind = Kind::kTanh;
      break;
    case Layer::kSigmoid:
      spec.kind = Kind::kSigmoid;
      break;
    case Layer::kLayerNorm:
      spec.kind = Kind::kLayerNorm;
      if (layer.layer_norm().eps() > 0) spec.eps = layer.layer_norm().eps();
      break;
    case Layer::kRelu:
    case Layer::KIND_NOT_SET:
      spec.kind = Kind::kRelu;
      break;
  }
  return spec;
}

std::vector<engine::LayerSpec> LayerSpecsOf(
    const google::protobuf::RepeatedPtrField<Layer>& layers) {
  std::vector<engine::LayerSpec> specs;
  for (const Layer& layer : layers) specs.push_back(LayerSpecOf(layer));
  return specs;
}

// Reads the fields of a model's message into the engine's struct for that model, by their names.
class FieldReader {
 public:
  explicit FieldReader(const google::protobuf::Message& message) : message_(message) {}

  template <typename T>
  void operator()(const char* name, T* value) {
    const FieldDescriptor* field = message_.GetDescriptor()->FindFieldByName(name);
    LS_CHECK(field != nullptr) << message_.GetTypeName() << " has no field " << name;
    ++read_;
    if (field->is_repeated() ? reflection().FieldSize(message_, field) > 0
                             : reflection().HasField(message_, field)) {
      Read(field, value);
    }
  }
  int read() const { return read_; }

 private:
  using FieldDescriptor = google::protobuf::FieldDescriptor;

  const google::protobuf::Reflection& reflection() const { return *message_.GetReflection(); }

  void Read(const FieldDescriptor* field, bool* value) const {
    *value = reflection().GetBool(message_, field);
  }
  void Read(const FieldDescriptor* field, double* value) const {
    *value = reflection().GetDouble(message_, field);
  }
  void Read(const FieldDescriptor* field, int64_t* value) const {
    *value = field->cpp_type() == FieldDescriptor::CPPTYPE_INT32
                 ? reflection().GetInt32(message_, field)
                 : reflection().GetInt64(message_, field);
  }
  void Read(const FieldDescriptor* field, std::string* value) const {
    *value = reflection().GetString(message_, field);
  }
  void Read(const FieldDescriptor* field, std::vector<int64_t>* values) const {
    const auto& all = reflection().GetRepeatedFieldRef<int64_t>(message_, field);
    values->assign(all.begin(), all.end());
  }
  void Read(const FieldDescriptor* field, std::vector<engine::LayerSpec>* layers) const {
    layers->clear();
    for (const auto& layer : reflection().GetRepeatedFieldRef<Layer>(message_, field)) {
      layers->push_back(LayerSpecOf(layer));
    }
  }

  const google::protobuf::Message& message_;
  int read_ = 0;
};

// The engine's model of this name, with its defaults.
template <size_t I = 0>
engine::ModelSpec ModelNamed(const std::string& name) {
  if constexpr (I == std::variant_size_v<engine::ModelSpec>) {
    LS_CHECK(false) << "the engine has no model " << name;
    return {};
  } else {
    using Spec = std::variant_alternative_t<I, engine::ModelSpec>;
    return name == Spec::kName ? Spec() : ModelNamed<I + 1>(name);
  }
}

}  // namespace

absl::StatusOr<engine::ModelSpec> ModelSpecOf(const Model& model) {
  const google::protobuf::Reflection& reflection = *model.GetReflection();
  const google::protobuf::FieldDescriptor* kind =
      reflection.GetOneofFieldDescriptor(model, Model::descriptor()->FindOneofByName("kind"));
  if (kind == nullptr) return absl::InvalidArgumentError("train.model names no model");
  engine::ModelSpec spec = ModelNamed(kind->name());
  FieldReader reader(reflection.GetMessage(model, kind));
  std::visit([&reader](auto& fields) { fields.VisitFields(reader); }, spec);
  LS_CHECK(reader.read() == kind->message_type()->field_count())
      << "the engine's " << kind->name() << " lacks a field of its message";
  return spec;
}

}  // namespace lockstep::worker
