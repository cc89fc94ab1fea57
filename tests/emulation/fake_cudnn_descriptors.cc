// SPDX-License-Identifier: Apache-2.0
// The fake cuDNN's graph interface: descriptors with their attributes, its engines, and runs.
#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/emulation/fake_cudnn_graph.h"

namespace lockstep::fake_cudnn {
namespace {

using engine::cuda::CudnnAttribute;
using engine::cuda::CudnnAttributeType;
using engine::cuda::CudnnHeuristics;
using engine::cuda::CudnnKind;
using enum engine::cuda::CudnnAttribute;

// A knob that algorithm 1 has, and its value.
constexpr int kKnob = 24;
constexpr int64_t kKnobChoice = 6;

// What a descriptor says. Others that it names are kept.
struct Data {
  CudnnKind kind{};
  bool finalized = false;
  std::map<CudnnAttribute, std::vector<std::byte>> values;
  std::map<CudnnAttribute, std::vector<std::shared_ptr<const Data>>> parts;

  template <typename T>
  std::vector<T> All(CudnnAttribute attribute) const {
    const auto it = values.find(attribute);
    if (it == values.end()) return {};
    std::vector<T> all(it->second.size() / sizeof(T));
    std::memcpy(all.data(), it->second.data(), all.size() * sizeof(T));
    return all;
  }
  template <typename T>
  T One(CudnnAttribute attribute, T otherwise) const {
    const std::vector<T> all = All<T>(attribute);
    return all.empty() ? otherwise : all[0];
  }
  template <typename T>
  void Put(CudnnAttribute attribute, T value) {
    values[attribute].resize(sizeof(T));
    std::memcpy(values[attribute].data(), &value, sizeof(T));
  }
  const Data* Part(CudnnAttribute attribute) const {
    const auto it = parts.find(attribute);
    return it == parts.end() || it->second.empty() ? nullptr : it->second[0].get();
  }
};
struct Descriptor {
  std::shared_ptr<Data> data = std::make_shared<Data>();
};
Data& Of(CudnnObject object) { return *static_cast<Descriptor*>(object)->data; }

size_t BytesOf(CudnnAttributeType type) {
  switch (type) {
    case CudnnAttributeType::kHandle:
    case CudnnAttributeType::kInt64:
    case CudnnAttributeType::kPointer:
      return 8;
    case CudnnAttributeType::kBoolean:
    case CudnnAttributeType::kChar:
      return 1;
    default:
      return 4;
  }
}

GraphTensor TensorOf(const Data& data) {
  GraphTensor tensor;
  tensor.id = data.One<int64_t>(kTensorId, -1);
  tensor.type = data.One(kTensorType, -1);
  tensor.between = data.One<unsigned char>(kTensorIsVirtual, 0) != 0;
  const auto extents = data.All<int64_t>(kTensorExtents);
  const auto strides = data.All<int64_t>(kTensorStrides);
  std::copy_n(extents.begin(), std::min<size_t>(4, extents.size()), tensor.extents.begin());
  std::copy_n(strides.begin(), std::min<size_t>(4, strides.size()), tensor.strides.begin());
  return tensor;
}

GraphOperation OperationOf(const Data& data) {
  GraphOperation operation;
  operation.kind = data.kind;
  const auto add = [&](CudnnAttribute attribute) {
    const Data* tensor = data.Part(attribute);
    if (tensor != nullptr) operation.from.push_back(TensorOf(*tensor));
  };
  for (const CudnnAttribute one :
       {kMatmulA, kMatmulB, kForwardImages, kForwardFilters, kFilterGradientImages,
        kFilterGradientPlaces, kPointwiseX, kPointwiseB, kPointwiseT, kReductionX, kReshapeX}) {
    add(one);
  }
  for (const CudnnAttribute one :
       {kMatmulC, kForwardResult, kFilterGradientResult, kPointwiseY, kReductionY, kReshapeY}) {
    if (data.Part(one) != nullptr) operation.to = TensorOf(*data.Part(one));
  }
  if (const Data* how = data.Part(kPointwiseDescriptor)) {
    operation.mode = how->One(kPointwiseMode, -1);
    operation.axis = how->One<int64_t>(kPointwiseAxis, 0);
  }
  for (const CudnnAttribute one : {kForwardDescriptor, kFilterGradientDescriptor}) {
    const Data* how = data.Part(one);
    if (how == nullptr) continue;
    const auto axes = [&](CudnnAttribute attribute, std::array<int64_t, 2>* into) {
      const auto all = how->All<int64_t>(attribute);
      std::copy_n(all.begin(), std::min<size_t>(2, all.size()), into->begin());
    };
    axes(kConvolutionPaddingBefore, &operation.padding);
    axes(kConvolutionStrides, &operation.strides);
    axes(kConvolutionDilations, &operation.dilations);
  }
  if (const Data* how = data.Part(kReductionDescriptor)) {
    operation.mode = how->One(kReductionMode, -1);
  }
  return operation;
}

Graph GraphOf(const Data& data) {
  Graph graph;
  const auto it = data.parts.find(kGraphOperations);
  if (it == data.parts.end()) return graph;
  for (const auto& operation : it->second) graph.operations.push_back(OperationOf(*operation));
  return graph;
}

int EngineOf(const Data& engine) { return static_cast<int>(engine.One<int64_t>(kEngineIndex, -1)); }

// Returns whether algorithm 1 has its knob, and no other has one.
bool KnobsFit(const Data& config, int engine) {
  const auto it = config.parts.find(kConfigKnobs);
  const size_t count = it == config.parts.end() ? 0 : it->second.size();
  if (engine != kPlain) return count == 0;
  return count == 1 && it->second[0]->One(kKnobType, -1) == kKnob &&
         it->second[0]->One<int64_t>(kKnobValue, -1) == kKnobChoice;
}

CudnnStatus Check(const Data& data) {
  switch (data.kind) {
    case CudnnKind::kTensor: {
      const GraphTensor tensor = TensorOf(data);
      return tensor.id < 0 || tensor.type < 0 || tensor.extents[0] < 1 ? kBadParam : 0;
    }
    case CudnnKind::kHeuristics:
      if (switches.heuristics_status != 0) return switches.heuristics_status;
      return data.One(kHeuristicsMode, -1) == static_cast<int>(CudnnHeuristics::kFallback)
                 ? switches.fallback_status
                 : 0;
    case CudnnKind::kOperationGraph: {
      if (switches.graph_status != 0) return switches.graph_status;
      const Graph graph = GraphOf(data);
      const bool whole = !graph.operations.empty() && data.values.contains(kGraphHandle);
      return whole && Fits(graph) ? 0 : kBadParam;
    }
    case CudnnKind::kEngine: {
      const int engine = EngineOf(data);
      const bool has = engine >= 0 && engine <= kUnsupported && engine != switches.missing;
      return has && data.Part(kEngineGraph) != nullptr ? 0 : kNotSupported;
    }
    case CudnnKind::kPlan: {
      const Data* config = data.Part(kPlanConfig);
      if (config == nullptr || !data.values.contains(kPlanHandle)) return kBadParam;
      const int engine = EngineOf(*config->Part(kConfigEngine));
      return engine != kUnsupported && KnobsFit(*config, engine) ? 0 : kNotSupported;
    }
    default:
      return 0;
  }
}

std::shared_ptr<Data> MakeConfig(int number, const Data& heuristics) {
  auto engine = std::make_shared<Data>();
  engine->kind = CudnnKind::kEngine;
  engine->Put(kEngineIndex, int64_t{number});
  engine->parts[kEngineGraph] = heuristics.parts.at(kHeuristicsGraph);
  engine->finalized = true;
  auto config = std::make_shared<Data>();
  config->kind = CudnnKind::kEngineConfig;
  config->parts[kConfigEngine] = {engine};
  if (number == kPlain) {
    auto knob = std::make_shared<Data>();
    knob->kind = CudnnKind::kKnobChoice;
    knob->Put(kKnobType, kKnob);
    knob->Put(kKnobValue, kKnobChoice);
    knob->finalized = true;
    config->parts[kConfigKnobs] = {knob};
  }
  config->finalized = true;
  return config;
}

// Hands copies to the descriptors in `into`.
CudnnStatus Give(const std::vector<std::shared_ptr<const Data>>& parts, int64_t wanted,
                 int64_t* count, void* into) {
  *count = std::min<int64_t>(wanted, static_cast<int64_t>(parts.size()));
  for (int64_t i = 0; i < *count; ++i) {
    static_cast<Descriptor*>(static_cast<CudnnObject*>(into)[i])->data =
        std::make_shared<Data>(*parts[static_cast<size_t>(i)]);
  }
  return 0;
}

template <typename T>
CudnnStatus GiveValues(const std::vector<T>& values, int64_t wanted, int64_t* count, void* into) {
  *count = std::min<int64_t>(wanted, static_cast<int64_t>(values.size()));
  std::memcpy(into, values.data(), static_cast<size_t>(*count) * sizeof(T));
  return 0;
}

CudnnStatus Get(const Data& data, CudnnAttribute attribute, int64_t wanted, int64_t* count,
                void* into) {
  if (!data.finalized) return kBadParam;
  if (attribute == kHeuristicsResults) {
    const bool best = data.One(kHeuristicsMode, -1) == static_cast<int>(CudnnHeuristics::kBest);
    std::vector<std::shared_ptr<const Data>> configs;
    if (switches.proposes_none) return Give(configs, wanted, count, into);
    if (switches.proposes_unsteady) {
      return Give({MakeConfig(kNotDeterministic, data)}, wanted, count, into);
    }
    for (const int number : best ? std::vector<int>{kNotDeterministic, kLarge, kUnsupported, kPlain}
                                 : std::vector<int>{kPlain, kTurned}) {
      configs.push_back(MakeConfig(number, data));
    }
    return Give(configs, wanted, count, into);
  }
  if (attribute == kEngineNumericalNotes) {
    return EngineOf(data) == kNotDeterministic
               ? GiveValues<int>({0, engine::cuda::kCudnnNotDeterministic}, wanted, count, into)
               : GiveValues<int>({0}, wanted, count, into);
  }
  if (attribute == kPlanWorkspace) {
    const int engine = EngineOf(*data.Part(kPlanConfig)->Part(kConfigEngine));
    const size_t bytes = engine == kLarge ? kTooLarge : switches.workspace_bytes;
    return GiveValues<int64_t>({static_cast<int64_t>(bytes)}, wanted, count, into);
  }
  if (const auto it = data.parts.find(attribute); it != data.parts.end()) {
    return Give(it->second, wanted, count, into);
  }
  if (const auto it = data.values.find(attribute); it != data.values.end()) {
    *count = 1;
    std::memcpy(into, it->second.data(), it->second.size());
    return 0;
  }
  *count = 0;
  return attribute == kConfigKnobs ? 0 : kBadParam;
}

CudnnStatus Execute(CudnnObject handle, const Data& plan, const Data& pack) {
  const Data& engine = *plan.Part(kPlanConfig)->Part(kConfigEngine);
  const int algorithm = EngineOf(engine);
  if (algorithm == kPlain && switches.run_status != 0) return switches.run_status;
  const auto ids = pack.All<int64_t>(kPackIds);
  const auto pointers = pack.All<void*>(kPackPointers);
  void* const workspace = pack.One<void*>(kPackWorkspace, nullptr);
  if (ids.size() != pointers.size() || workspace == nullptr) return kBadParam;
  const Graph graph = GraphOf(*engine.Part(kEngineGraph));
  std::map<int64_t, void*> arrays;
  for (size_t i = 0; i < ids.size(); ++i) arrays[ids[i]] = pointers[i];
  const int type = graph.operations[0].from[0].type;
  for (const GraphOperation& operation : graph.operations) {
    for (const GraphTensor& tensor : operation.from) {
      if (!tensor.between && arrays[tensor.id] == nullptr) return kBadParam;
    }
    if (!operation.to.between && arrays[operation.to.id] == nullptr) return kBadParam;
  }
  return Enqueue(handle, workspace, [=] {
    switches.calls.push_back({3, algorithm, 1, type, 0, graph.products()});
    if (switches.spend) switches.spend(switches.milliseconds * (algorithm == kTurned ? 2 : 1));
    Compute(graph, algorithm, arrays);
  });
}

}  // namespace
}  // namespace lockstep::fake_cudnn

namespace fake = lockstep::fake_cudnn;

extern "C" {

int cudnnBackendCreateDescriptor(int kind, void** object) {
  auto* descriptor = new fake::Descriptor;
  descriptor->data->kind = static_cast<fake::CudnnKind>(kind);
  *object = descriptor;
  ++fake::switches.descriptors;
  return 0;
}
int cudnnBackendDestroyDescriptor(void* object) {
  delete static_cast<fake::Descriptor*>(object);
  --fake::switches.descriptors;
  return 0;
}
int cudnnBackendSetAttribute(void* object, int name, int type, int64_t count, const void* values) {
  fake::Data& data = fake::Of(object);
  const auto attribute = static_cast<fake::CudnnAttribute>(name);
  const auto kind = static_cast<fake::CudnnAttributeType>(type);
  if (data.finalized || count < 1 || values == nullptr) return fake::kBadParam;
  if (kind != fake::CudnnAttributeType::kDescriptor) {
    const auto* bytes = static_cast<const std::byte*>(values);
    data.values[attribute].assign(bytes, bytes + static_cast<size_t>(count) * fake::BytesOf(kind));
    return 0;
  }
  for (int64_t i = 0; i < count; ++i) {
    auto* other = static_cast<fake::Descriptor*>(static_cast<void* const*>(values)[i]);
    if (other == nullptr || !other->data->finalized) return fake::kBadParam;
    data.parts[attribute].push_back(other->data);
  }
  return 0;
}
int cudnnBackendFinalize(void* object) {
  fake::Data& data = fake::Of(object);
  const int status = fake::Check(data);
  data.finalized = status == 0;
  return status;
}
int cudnnBackendGetAttribute(void* object, int name, int, int64_t wanted, int64_t* count,
                             void* values) {
  return fake::Get(fake::Of(object), static_cast<fake::CudnnAttribute>(name), wanted, count,
                   values);
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  return fake::Execute(handle, fake::Of(plan), fake::Of(pack));
}

}  // extern "C"
