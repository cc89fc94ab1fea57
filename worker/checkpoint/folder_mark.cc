// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/folder_mark.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr absl::string_view kPrefix = ".run-";

}  // namespace

absl::StatusOr<std::unique_ptr<FolderMark>> FolderMark::Leave(checkpoint::Storage* storage,
                                                              const std::string& folder,
                                                              const std::string& run) {
  const std::string name = absl::StrCat(kPrefix, run);
  const std::string path = absl::StrCat(folder, "/", name);
  LS_RETURN_IF_ERROR(storage->MakeFolder(folder));
  LS_RETURN_IF_ERROR(storage->Create(path).status());
  // Alone, which a file system without locks refuses: there those who died could not be told.
  LS_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Storage::Hold> hold,
                      storage->TakeHold(path, /*exclusive=*/true));
  if (hold == nullptr) return std::unique_ptr<FolderMark>();
  std::unique_ptr<FolderMark> mark = absl::WrapUnique(new FolderMark(storage, folder, name));
  mark->hold_ = std::move(hold);
  return mark;
}

FolderMark::~FolderMark() { storage_->Remove(absl::StrCat(folder_, "/", name_)).IgnoreError(); }

bool FolderMark::SeesOthers() const {
  const auto names = storage_->List(folder_);
  return !names.ok() || std::ranges::any_of(*names, [this](const std::string& name) {
    return name != name_ && absl::StartsWith(name, kPrefix);
  });
}

std::vector<std::string> FolderMark::Others() const {
  std::vector<std::string> others;
  const auto names = storage_->List(folder_);
  if (!names.ok()) return others;
  for (const std::string& name : *names) {
    absl::string_view run = name;
    if (name == name_ || !absl::ConsumePrefix(&run, kPrefix)) continue;
    const std::string path = absl::StrCat(folder_, "/", name);
    const auto hold = storage_->TakeHold(path, /*exclusive=*/true);
    if (!hold.ok()) continue;  // it is gone
    if (*hold == nullptr) {
      others.emplace_back(run);
    } else {
      storage_->Remove(path).IgnoreError();
    }
  }
  return others;
}

bool HoldsFolder(checkpoint::Storage* storage, const std::string& folder, const std::string& run) {
  const auto hold = storage->TakeHold(absl::StrCat(folder, "/", kPrefix, run), /*exclusive=*/true);
  return hold.ok() && *hold == nullptr;
}

}  // namespace lockstep::worker
