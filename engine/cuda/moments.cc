// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/moments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/round_up.h"
#include "common/status.h"

namespace lockstep::engine {
namespace {

// The state's alignment: places of whole parameters keep their distances, so that neighbours are
// one copy.
constexpr size_t kAlign = 64;

// A worker is dealt at most so many stretches of the gradient vector.
constexpr size_t kMostRanges = 3072;
constexpr size_t kPage = 4096;

const GradientSlot& SlotOf(const CompiledPlan& plan, const std::string& parameter) {
  const auto& slots = plan.layout().slots;
  const auto slot = std::find_if(slots.begin(), slots.end(),
                                 [&](const GradientSlot& s) { return s.parameter == parameter; });
  LS_CHECK(slot != slots.end()) << parameter;
  return *slot;
}

const std::vector<ParameterSpec>& Parameters(const CompiledPlan& plan) {
  return plan.model().parameters();
}

size_t MostMoments(const CompiledPlan& plan) {
  size_t most = 0;
  for (const ParameterSpec& parameter : Parameters(plan)) {
    most = std::max(most, plan.optimizer().moments(parameter).size());
  }
  return most;
}

int64_t LargestParameter(const CompiledPlan& plan) {
  int64_t most = 0;
  for (const ParameterSpec& parameter : Parameters(plan)) {
    most = std::max(most, Elements(parameter.shape));
  }
  return most;
}

// Of a parameter in one chunk.
int64_t ChunkElements(const CompiledPlan& plan) {
  return plan.spec().passes.moment_blocks * cuda::kUpdateBlock;
}

// Bytes of a staging buffer.
size_t ChunkBytes(const CompiledPlan& plan) {
  const StateRange range = CudaMoments::RangeOf(plan);
  const size_t all = range.end - range.begin;
  return std::min(all,
                  static_cast<size_t>(ChunkElements(plan)) * sizeof(float) * MostMoments(plan));
}

}  // namespace

StateRange CudaMoments::RangeOf(const CompiledPlan& plan) {
  StateRange range;
  for (const StateEntry& entry : plan.state()) {
    if (entry.role != StateEntry::Role::kMoment) continue;
    if (range.end == 0) range.begin = entry.offset;
    range.end = RoundUp(entry.offset + entry.bytes, kAlign);
  }
  return range;
}

std::vector<CudaMoments::Piece> CudaMoments::AllOf(const CompiledPlan& plan) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < Parameters(plan).size(); ++i) {
    pieces.push_back({i, 0, Elements(Parameters(plan)[i].shape)});
  }
  return pieces;
}

std::vector<CudaMoments::Piece> CudaMoments::In(const CompiledPlan& plan,
                                                const std::vector<HeldRange>& held) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < Parameters(plan).size(); ++i) {
    const GradientSlot& slot = SlotOf(plan, Parameters(plan)[i].name);
    for (const HeldRange& range : held) {
      const int64_t begin = std::max(range.begin, slot.begin);
      const int64_t end = std::min(range.end, slot.begin + slot.count);
      if (begin >= end) continue;
      Piece* const last = pieces.empty() ? nullptr : &pieces.back();
      if (last != nullptr && last->parameter == i &&
          last->first + last->count == begin - slot.begin) {
        last->count += end - begin;
      } else {
        pieces.push_back({i, begin - slot.begin, end - begin});
      }
    }
  }
  return pieces;
}

size_t CudaMoments::DeviceBytes(const CompiledPlan& plan, size_t reserve) {
  if (plan.spec().inference) return 0;
  if (plan.spec().offload_moments) return 2 * ChunkBytes(plan);
  const StateRange range = RangeOf(plan);
  return reserve > 0 ? std::min(reserve, range.end - range.begin) : range.end - range.begin;
}

absl::StatusOr<std::unique_ptr<CudaMoments>> CudaMoments::Make(const CompiledPlan* plan,
                                                               StateRegion* host,
                                                               cuda::Device* device,
                                                               size_t reserve) {
  std::unique_ptr<CudaMoments> moments(new CudaMoments(plan, host, device));
  LS_RETURN_IF_ERROR(moments->Allocate(reserve));
  return moments;
}

CudaMoments::CudaMoments(const CompiledPlan* plan, StateRegion* host, cuda::Device* device)
    : plan_(*plan), host_(*host), device_(*device), offloaded_(plan->spec().offload_moments) {}

absl::Status CudaMoments::Allocate(size_t reserve) {
  const size_t bytes = DeviceBytes(plan_, reserve);
  if (plan_.spec().inference) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(buffers_[0], device_.Allocate(bytes, "the optimizer's moments"));
  buffer_bytes_ = bytes;
  chunk_elements_ = std::max<int64_t>(LargestParameter(plan_), 1);
  most_pieces_ = Parameters(plan_).size();
  if (plan_.spec().shard_moments) most_pieces_ += kMostRanges;
  if (offloaded_) {
    buffer_bytes_ = bytes / 2;
    buffers_[1] = buffers_[0] + buffer_bytes_;
    chunk_elements_ = ChunkElements(plan_);
    most_pieces_ += static_cast<size_t>(plan_.parameter_count() / chunk_elements_) + 1;
  }
  // Each piece begins and ends within a block.
  most_blocks_ = static_cast<size_t>(plan_.parameter_count() / cuda::kUpdateBlock) + most_pieces_;
  for (auto* events : {&brought_, &used_, &taken_}) {
    for (cuda::Event& event : *events) {
      LS_ASSIGN_OR_RETURN(event, device_.MakeEvent());
    }
  }
  return absl::OkStatus();
}

float* CudaMoments::At(size_t piece, size_t moment) const { return places_[piece][moment]; }

absl::Status CudaMoments::Hold(const std::vector<Piece>& pieces) {
  pieces_.clear();
  chunks_.clear();
  layouts_.clear();
  places_.clear();
  for (const Piece& whole : pieces) {
    const int64_t end = whole.first + whole.count;
    for (int64_t at = whole.first; at < end;) {
      const int64_t cut = (at / chunk_elements_ + 1) * chunk_elements_;
      const Piece piece{whole.parameter, at, std::min(cut, end) - at};
      LS_RETURN_IF_ERROR(Place(piece));
      at += piece.count;
    }
  }
  if (offloaded_) {
    Pin();
    return absl::OkStatus();
  }
  LS_RETURN_IF_ERROR(Upload());
  return device_.Wait(device_.compute());
}

absl::Status CudaMoments::Place(const Piece& piece) {
  const ParameterSpec& spec = Parameters(plan_)[piece.parameter];
  const std::vector<std::string> names = plan_.optimizer().moments(spec);
  const size_t bytes = static_cast<size_t>(piece.count) * sizeof(float);
  const size_t needed = names.size() * RoundUp(bytes, kAlign);
  const bool full = !chunks_.empty() && offloaded_ && filled_ + needed > buffer_bytes_;
  if (chunks_.empty() || full) {
    chunks_.push_back({pieces_.size(), pieces_.size()});
    layouts_.push_back({buffers_[offloaded_ ? (chunks_.size() - 1) % 2 : 0], {}});
    filled_ = 0;
  }
  if (filled_ + needed > buffer_bytes_ || pieces_.size() == most_pieces_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this worker is to hold more of the optimizer's moments than the ",
                     buffer_bytes_, " bytes that were reserved for them on the GPU"));
  }
  std::vector<Run>& runs = layouts_.back().runs;
  std::vector<float*>& places = places_.emplace_back();
  for (const std::string& name : names) {
    const size_t state = plan_.Entry(absl::StrCat(spec.name, ".", name)).offset +
                         static_cast<size_t>(piece.first) * sizeof(float);
    places.push_back(reinterpret_cast<float*>(layouts_.back().buffer + filled_));
    if (!runs.empty() && state - runs.back().state == filled_ - runs.back().at &&
        state - (runs.back().state + runs.back().bytes) < kAlign) {
      runs.back().bytes = state + bytes - runs.back().state;
    } else {
      runs.push_back({state, bytes, filled_});
    }
    filled_ += RoundUp(bytes, kAlign);
  }
  pieces_.push_back(piece);
  chunks_.back().end = pieces_.size();
  return absl::OkStatus();
}

void CudaMoments::Pin() {
  for (void* pointer : pinned_) device_.Unpin(pointer);
  pinned_.clear();
  // Whole pages; neighbours in one go. What lies before and behind the moments is copied too, and
  // the driver takes no memory of which a part is page-locked.
  const size_t state_bytes = plan_.state_bytes();
  const StateRange moments = RangeOf(plan_);
  std::vector<StateRange> copied = {{0, moments.begin}, {moments.end, state_bytes}};
  for (const Layout& layout : layouts_) {
    for (const Run& run : layout.runs) copied.push_back({run.state, run.state + run.bytes});
  }
  const auto base = reinterpret_cast<uintptr_t>(host_.base());
  std::vector<StateRange> pages;
  for (const StateRange& range : copied) {
    if (range.begin == range.end) continue;
    pages.push_back({std::max(base, (base + range.begin) / kPage * kPage),
                     std::min(base + state_bytes, RoundUp(base + range.end, kPage))});
  }
  std::sort(pages.begin(), pages.end(),
            [](const StateRange& a, const StateRange& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < pages.size();) {
    StateRange all = pages[i];
    for (++i; i < pages.size() && pages[i].begin <= all.end; ++i) {
      all.end = std::max(all.end, pages[i].end);
    }
    void* const pointer = reinterpret_cast<void*>(all.begin);
    if (device_.Pin(pointer, all.end - all.begin)) pinned_.push_back(pointer);
  }
}

absl::Status CudaMoments::Copy(const Layout& layout, bool up, cuda::Stream stream) const {
  for (const Run& run : layout.runs) {
    std::byte* const there = layout.buffer + run.at;
    std::byte* const here = host_.base() + run.state;
    LS_RETURN_IF_ERROR(device_.Copy(up ? there : here, up ? here : there, run.bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status CudaMoments::Move(bool up) const {
  if (offloaded_ || layouts_.empty()) return absl::OkStatus();
  return Copy(layouts_[0], up, device_.compute());
}

absl::Status CudaMoments::Bring(size_t chunk) {
  if (!offloaded_) return absl::OkStatus();
  const cuda::Runtime& runtime = device_.runtime();
  const size_t buffer = chunk % 2;
  // Whatever was in the buffer before is used, and back where it belongs.
  cuda::Code code = runtime.stream_waits(device_.copies(), used_[buffer]);
  if (code == 0) code = runtime.stream_waits(device_.copies(), taken_[buffer]);
  LS_RETURN_IF_ERROR(device_.Check(code, "moments"));
  LS_RETURN_IF_ERROR(Copy(layouts_[chunk], true, device_.copies()));
  code = runtime.record_event(brought_[buffer], device_.copies());
  if (code == 0) code = runtime.stream_waits(device_.compute(), brought_[buffer]);
  return device_.Check(code, "moments");
}

absl::Status CudaMoments::Take(size_t chunk, bool changed) {
  if (!offloaded_) return absl::OkStatus();
  const cuda::Runtime& runtime = device_.runtime();
  const size_t buffer = chunk % 2;
  cuda::Code code = runtime.record_event(used_[buffer], device_.compute());
  if (code != 0 || !changed) return device_.Check(code, "moments");
  code = runtime.stream_waits(device_.returns(), used_[buffer]);
  LS_RETURN_IF_ERROR(device_.Check(code, "moments"));
  LS_RETURN_IF_ERROR(Copy(layouts_[chunk], false, device_.returns()));
  return device_.Check(runtime.record_event(taken_[buffer], device_.returns()), "moments");
}

absl::Status CudaMoments::Settle() const {
  return offloaded_ ? device_.Wait(device_.returns()) : absl::OkStatus();
}

}  // namespace lockstep::engine
