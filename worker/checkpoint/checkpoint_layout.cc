// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/json.h"

namespace lockstep::worker {
namespace {

std::string FileName(const char* stem, int part, int parts) {
  if (parts == 1) return absl::StrCat(stem, ".safetensors");
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", stem, part + 1, parts);
}

bool IsModel(const engine::StateEntry& entry) {
  using Role = engine::StateEntry::Role;
  return entry.role == Role::kParameter || entry.role == Role::kStatistic;
}

}  // namespace

std::string TensorName(const engine::StateEntry& entry) {
  if (entry.role != engine::StateEntry::Role::kScalar) return entry.name;
  return absl::StrCat("lockstep.", entry.name);
}

std::string TensorDtype(const engine::StateEntry& entry) {
  switch (entry.type) {
    case engine::StateEntry::Type::kFloat32:
      return "F32";
    case engine::StateEntry::Type::kInt64:
      return "I64";
    case engine::StateEntry::Type::kFloat64:
      return "F64";
    case engine::StateEntry::Type::kBFloat16:
      return "BF16";
    case engine::StateEntry::Type::kFloat16:
      break;
  }
  return "F16";
}

int CheckpointLayout::PartsFor(size_t bytes, int world, size_t part_bytes) {
  return static_cast<int>(std::clamp<size_t>(bytes / part_bytes, 1, static_cast<size_t>(world)));
}

CheckpointLayout::CheckpointLayout(const engine::Plan* plan, int parts) {
  size_t model = 0, rest = 0;
  for (const engine::StateEntry& entry : plan->state()) {
    (IsModel(entry) ? model : rest) += entry.bytes;
  }
  for (int part = 0; part < parts; ++part) {
    files_.push_back({FileName("model", part, parts), {}});
    files_.push_back({FileName("training", part, parts), {}});
  }
  // A tensor belongs to the part in which its middle lies.
  size_t model_at = 0, rest_at = 0;
  for (const engine::StateEntry& entry : plan->state()) {
    size_t& at = IsModel(entry) ? model_at : rest_at;
    const double middle = static_cast<double>(at) + static_cast<double>(entry.bytes) / 2;
    const double total = static_cast<double>(IsModel(entry) ? model : rest);
    const int part = std::min(parts - 1, static_cast<int>(middle / total * parts));
    files_[static_cast<size_t>(part) * 2 + (IsModel(entry) ? 0 : 1)].entries.push_back(&entry);
    at += entry.bytes;
  }
}

std::vector<std::vector<engine::StateRange>> CheckpointLayout::Copies(const engine::Plan& plan,
                                                                      int world) {
  const CheckpointLayout layout(&plan, PartsFor(plan.state_bytes(), world));
  std::vector<std::vector<engine::StateRange>> copies(static_cast<size_t>(world));
  for (int part = 0; part < layout.parts(); ++part) {
    std::vector<engine::StateRange>& ranges = copies[static_cast<size_t>(part)];
    for (const LayoutFile& file : layout.FilesOf(part)) {
      for (const engine::StateEntry* entry : file.entries) {
        ranges.push_back({entry->offset, entry->offset + entry->bytes});
      }
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  return copies;
}

size_t CheckpointLayout::BytesOf(int part) const {
  size_t bytes = 0;
  for (const LayoutFile& file : FilesOf(part)) {
    for (const engine::StateEntry* entry : file.entries) bytes += entry->bytes;
  }
  return bytes;
}

size_t CheckpointLayout::MostBytes() const {
  size_t most = 0;
  for (int part = 0; part < parts(); ++part) most = std::max(most, BytesOf(part));
  return most;
}

std::string CheckpointLayout::Index() const {
  if (parts() == 1) return "";
  size_t bytes = 0;
  std::vector<std::string> places;
  for (int part = 0; part < parts(); ++part) {
    const LayoutFile& file = FilesOf(part)[0];
    for (const engine::StateEntry* entry : file.entries) {
      bytes += entry->bytes;
      places.push_back(absl::StrCat(JsonString(TensorName(*entry)), ": ", JsonString(file.name)));
    }
  }
  return absl::StrCat("{\"metadata\": {\"total_size\": ", bytes, "},\n \"weight_map\": {\n  ",
                      absl::StrJoin(places, ",\n  "), "}}\n");
}

}  // namespace lockstep::worker
