// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::engine::cuda {
namespace {

using enum CudnnAttribute;
using Types = CudnnAttributeType;

constexpr size_t kMostConfigs = 32;  // that are looked at

// Returns whether the engine gives the same bits in each run.
bool IsDeterministic(CudnnDescriptor& engine) {
  std::array<int, kCudnnNotes> notes{};
  const int64_t count =
      engine.Get(kEngineNumericalNotes, Types::kNumericalNote, kCudnnNotes, notes.data());
  return engine.status() == 0 &&
         std::find(notes.begin(), notes.begin() + std::min<int64_t>(count, kCudnnNotes),
                   kCudnnNotDeterministic) == notes.begin() + std::min<int64_t>(count, kCudnnNotes);
}

CudnnAlgorithm AlgorithmOf(CudnnDescriptor& config, CudnnDescriptor& engine) {
  CudnnAlgorithm algorithm{static_cast<int>(engine.GetInt(kEngineIndex))};
  for (CudnnDescriptor& choice : config.GetAll(kConfigKnobs, CudnnKind::kKnobChoice, kCudnnKnobs)) {
    int type = 0;
    choice.Get(kKnobType, Types::kKnobType, 1, &type);
    algorithm.knobs.emplace_back(type, choice.GetInt(kKnobValue));
  }
  std::sort(algorithm.knobs.begin(), algorithm.knobs.end());
  return algorithm;
}

}  // namespace

absl::StatusOr<std::vector<CudnnAlgorithm>> CudnnPlan::Propose(const CudnnGraph& graph,
                                                               size_t most) {
  const CudnnBackend& backend = graph.backend();
  std::vector<CudnnAlgorithm> found;
  bool names_one = false;
  CudnnStatus refusal = 0;
  const auto note = [&refusal](CudnnStatus status) {
    if (refusal == 0) refusal = status;
  };
  for (const CudnnHeuristics mode : {CudnnHeuristics::kBest, CudnnHeuristics::kFallback}) {
    CudnnDescriptor heuristics(backend, CudnnKind::kHeuristics);
    heuristics.Set(kHeuristicsGraph, graph.object())
        .Set(kHeuristicsMode, Types::kHeuristicsMode, static_cast<int>(mode));
    if (graph.place().properties != nullptr) {
      heuristics.Set(kHeuristicsDevice, graph.place().properties);
    }
    heuristics.Finalize();
    for (CudnnDescriptor& config :
         heuristics.GetAll(kHeuristicsResults, CudnnKind::kEngineConfig, kMostConfigs)) {
      CudnnDescriptor engine(backend, CudnnKind::kEngine);
      CudnnObject into = engine.object();
      config.Get(kConfigEngine, Types::kDescriptor, 1, static_cast<void*>(&into));
      const bool suits = config.status() == 0 && IsDeterministic(engine);
      const CudnnAlgorithm algorithm = suits ? AlgorithmOf(config, engine) : CudnnAlgorithm{};
      note(config.status());
      note(engine.status());
      if (config.status() != 0 || engine.status() != 0) continue;
      names_one = true;
      const bool known = std::find(found.begin(), found.end(), algorithm) != found.end();
      if (suits && !known && found.size() < most) found.push_back(algorithm);
    }
    note(heuristics.status());
  }
  if (names_one) return found;
  return absl::InternalError(refusal == 0
                                 ? "it proposes no engine"
                                 : absl::StrCat("it proposes no engine: status ", refusal));
}

absl::StatusOr<CudnnPlan> CudnnPlan::Make(const CudnnGraph& graph,
                                          const CudnnAlgorithm& algorithm) {
  const CudnnBackend& backend = graph.backend();
  const CudnnPlace& place = graph.place();
  CudnnDescriptor engine(backend, CudnnKind::kEngine);
  engine.Set(kEngineGraph, graph.object()).Set(kEngineIndex, int64_t{algorithm.number});
  if (place.properties != nullptr) engine.Set(kEngineDevice, place.properties);
  engine.Finalize();
  if (engine.status() == 0 && !IsDeterministic(engine)) {
    return absl::InternalError(
        absl::StrCat("cuDNN's engine ", algorithm.number, " may give other bits in each run"));
  }
  std::vector<CudnnDescriptor> choices;
  std::vector<CudnnObject> objects;
  CudnnStatus status = engine.status();
  for (const auto& [type, value] : algorithm.knobs) {
    CudnnDescriptor choice(backend, CudnnKind::kKnobChoice);
    choice.Set(kKnobType, Types::kKnobType, type).Set(kKnobValue, value).Finalize();
    if (status == 0) status = choice.status();
    objects.push_back(choice.object());
    choices.push_back(std::move(choice));
  }
  CudnnDescriptor config(backend, CudnnKind::kEngineConfig);
  config.Set(kConfigEngine, engine.object());
  if (!objects.empty()) {
    config.Set(kConfigKnobs, Types::kDescriptor, static_cast<int64_t>(objects.size()),
               static_cast<const void*>(objects.data()));
  }
  if (status == 0) status = config.Finalize().status();
  CudnnPlan made(backend);
  if (place.handle != nullptr) made.plan_.Set(kPlanHandle, Types::kHandle, 1, &place.handle);
  if (place.properties != nullptr) made.plan_.Set(kPlanDevice, place.properties);
  made.plan_.Set(kPlanConfig, config.object());
  if (status == 0) status = made.plan_.Finalize().status();
  if (status == 0) {
    made.workspace_bytes_ = static_cast<size_t>(made.plan_.GetInt(kPlanWorkspace));
    status = made.plan_.status();
  }
  if (status == 0) return made;
  return absl::InternalError(
      absl::StrCat("cuDNN's engine ", algorithm.number, " cannot be prepared: status ", status));
}

CudnnStatus CudnnPlan::Run(CudnnObject handle, const std::vector<int64_t>& ids,
                           const std::vector<void*>& pointers, void* workspace) const {
  CudnnDescriptor pack(*backend_, CudnnKind::kVariantPack);
  pack.Set(kPackIds, ids)
      .Set(kPackPointers, Types::kPointer, static_cast<int64_t>(pointers.size()),
           static_cast<const void*>(pointers.data()))
      .Set(kPackWorkspace, Types::kPointer, 1, static_cast<const void*>(&workspace))
      .Finalize();
  return pack.status() != 0 ? pack.status()
                            : backend_->execute(handle, plan_.object(), pack.object());
}

absl::StatusOr<std::vector<CudnnAlgorithm>> CudnnWays::Ready(std::vector<CudnnAlgorithm> proposed) {
  std::vector<CudnnAlgorithm> found;
  bool lacks_room = false;
  absl::Status refusal;
  for (CudnnAlgorithm& one : proposed) {
    const auto plan = Prepare(one);
    if (absl::IsResourceExhausted(plan.status())) {
      lacks_room = true;
    } else {
      refusal.Update(plan.status());
    }
    if (!plan.ok()) continue;
    one.workspace_bytes = (*plan)->workspace_bytes();
    ready_.emplace_back(one, *plan);
    found.push_back(std::move(one));
  }
  if (!found.empty() || lacks_room || refusal.ok()) return found;
  return refusal;
}

absl::StatusOr<std::shared_ptr<const CudnnPlan>> CudnnWays::Prepare(
    const CudnnAlgorithm& algorithm) {
  for (const auto& [known, plan] : ready_) {
    if (known == algorithm) return plan;
  }
  LS_ASSIGN_OR_RETURN(CudnnPlan plan, CudnnPlan::Make(graph_, algorithm));
  if (plan.workspace_bytes() > room_) {
    return absl::ResourceExhaustedError("it needs more workspace");
  }
  return std::make_shared<const CudnnPlan>(std::move(plan));
}

}  // namespace lockstep::engine::cuda
