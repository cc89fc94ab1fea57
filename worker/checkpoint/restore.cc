// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/restore.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_place.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sha256.h"
#include "checkpoint/storage.h"
#include "common/log.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "worker/checkpoint/candidates.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/checkpoint/restore_copies.h"
#include "worker/control/disk_wait.h"

namespace lockstep::worker {
namespace {

using checkpoint::FoundCheckpoint;
using checkpoint::SafetensorsFile;

constexpr size_t kPiece = size_t{4} << 20;

// What rank 0 tells the others; it travels as bytes. Of versions before `evaluated_other`, which
// have its place in `text`, that is 0.
struct Choice {
  enum What : int32_t { kNone, kTry, kRefuse };
  int32_t what = kNone;
  char text[4088] = {};  // the path
  int32_t evaluated_other = 0;
};
static_assert(sizeof(Choice) == 4096);

absl::Status Fits(const engine::StateEntry& entry, const checkpoint::TensorEntry& tensor) {
  if (tensor.dtype == TensorDtype(entry) && tensor.bytes() == entry.bytes &&
      tensor.shape == entry.shape) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "tensor '", tensor.name, "' is ", tensor.dtype, "[", absl::StrJoin(tensor.shape, ","),
      "], this job has ", TensorDtype(entry), "[", absl::StrJoin(entry.shape, ","), "]"));
}

// The bytes of the region that hold `entry` here.
std::vector<engine::StateRange> PresentOf(const engine::StateEntry& entry,
                                          const StateTarget& target) {
  const engine::StateRange whole{entry.offset, entry.offset + entry.bytes};
  if (target.present == nullptr) return {whole};
  std::vector<engine::StateRange> ranges;
  auto range = std::upper_bound(
      target.present->begin(), target.present->end(), whole.begin,
      [](size_t at, const engine::StateRange& present) { return at < present.end; });
  for (; range != target.present->end() && range->begin < whole.end; ++range) {
    ranges.push_back({std::max(range->begin, whole.begin), std::min(range->end, whole.end)});
  }
  return ranges;
}

// A tensor, and the file that has it.
struct Stored {
  const SafetensorsFile* file = nullptr;
  const checkpoint::TensorEntry* tensor = nullptr;
};

// Checks that the tensors are those of the plan's state. Errors: DataLoss, naming one.
absl::Status CheckTensors(const std::map<std::string, Stored>& tensors, const engine::Plan& plan) {
  for (const engine::StateEntry& entry : plan.state()) {
    const auto found = tensors.find(TensorName(entry));
    if (found == tensors.end()) {
      return absl::DataLossError(absl::StrCat("tensor '", TensorName(entry), "' is missing"));
    }
    LS_RETURN_IF_ERROR(Fits(entry, *found->second.tensor));
  }
  if (tensors.size() == plan.state().size()) return absl::OkStatus();
  return absl::DataLossError("it has tensors that this job has not");
}

// Fills the state from tensors by name, which are those of the plan.
absl::Status Fill(const std::map<std::string, Stored>& tensors, const StateTarget& target,
                  const checkpoint::GoOn& go_on) {
  char* const state = static_cast<char*>(target.state);
  for (const engine::StateEntry& entry : target.plan->state()) {
    const Stored& stored = tensors.at(TensorName(entry));
    for (const engine::StateRange& range : PresentOf(entry, target)) {
      for (size_t at = range.begin; at < range.end; at += kPiece) {
        if (!go_on()) return absl::CancelledError("given up");
        LS_RETURN_IF_ERROR(stored.file->Read(*stored.tensor, at - entry.offset, state + at,
                                             std::min(kPiece, range.end - at)));
      }
    }
  }
  return absl::OkStatus();
}

// Returns what rank 0 does about the next candidate; all ranks get the same.
absl::StatusOr<Choice> Choose(Communicator* communicator, Candidates* candidates,
                              ProgressBoard* board, Clock* clock, absl::Time deadline) {
  Choice choice;
  absl::Status refused;
  if (communicator->rank() == 0) {
    const FoundCheckpoint* next = nullptr;
    refused = WorkOnDisk(board, clock, [&](const checkpoint::GoOn& go_on) -> absl::Status {
      LS_ASSIGN_OR_RETURN(next, candidates->Next(go_on));
      return absl::OkStatus();
    });
    std::string text;
    if (!refused.ok()) {
      choice.what = Choice::kRefuse;
    } else if (next != nullptr) {
      choice.what = Choice::kTry;
      choice.evaluated_other = candidates->evaluated_other() ? 1 : 0;
      text = next->path;
    } else {
      refused = candidates->Exhausted();
      choice.what = refused.ok() ? Choice::kNone : Choice::kRefuse;
    }
    if (text.size() >= sizeof(choice.text)) {
      refused = absl::InvalidArgumentError("checkpoint.dir: the path is too long");
      choice.what = Choice::kRefuse;
      text.clear();
    }
    std::memcpy(choice.text, text.data(), text.size());
  }
  LS_RETURN_IF_ERROR(communicator->Broadcast(&choice, sizeof(choice), DType::kUInt8, 0, deadline));
  LS_RETURN_IF_ERROR(refused);
  if (choice.what == Choice::kRefuse) return absl::AbortedError("rank 0 found no way to resume");
  choice.text[sizeof(choice.text) - 1] = '\0';
  return choice;
}

// A file is missing, as `missing` says: that is damage, in a folder that is there. Rank 0 has seen
// the folder: where it is not, it cannot be reached.
absl::Status WithoutFile(checkpoint::Storage* storage, const std::string& path,
                         const absl::Status& missing) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(path));
  if (!names.empty()) return missing;
  return absl::UnavailableError(absl::StrCat(
      path,
      " is not there, though rank 0 has read it (several hosts need a checkpoint.dir that all",
      " of them share; is it mounted?)"));
}

// LoadCheckpoint of the one with that manifest, in the thread.
absl::Status Load(const ResumeSource& source, const std::string& path,
                  const checkpoint::Manifest& manifest, int share, int shares,
                  const StateTarget& target, const checkpoint::GoOn& go_on) {
  checkpoint::Storage* const storage = source.storage;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, Stored> tensors;
  int number = 0;
  for (const checkpoint::FileRecord& record : manifest.files) {
    if (number++ % shares == share) {
      LS_RETURN_IF_ERROR(checkpoint::CheckFile(storage, path, record, go_on));
    }
    if (!absl::EndsWith(record.name, ".safetensors")) continue;
    LS_ASSIGN_OR_RETURN(auto file,
                        SafetensorsFile::Open(absl::StrCat(path, "/", record.name), storage));
    for (const checkpoint::TensorEntry& tensor : file->tensors()) {
      if (tensors.emplace(tensor.name, Stored{file.get(), &tensor}).second) continue;
      return absl::DataLossError(absl::StrCat("tensor '", tensor.name, "' is there twice"));
    }
    files.push_back(std::move(file));
  }
  if (absl::Status same = CheckTensors(tensors, *target.plan); !same.ok()) {
    const std::string& saved = manifest.plan_hash;
    const bool same_plan = saved == target.plan->math_hash() ||
                           saved == target.plan->older_math_hash() || saved == target.plan->hash();
    if (same_plan) return same;
    // Each rank has checked its share of the files alone, and what is damaged may be a name.
    for (const checkpoint::FileRecord& record : manifest.files) {
      LS_RETURN_IF_ERROR(checkpoint::CheckFile(storage, path, record, go_on));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint ", path, " is of another training, whose state this job cannot take: ",
        same.message(), "; take the job as it was, ", InsteadOf(manifest, source)));
  }
  LS_RETURN_IF_ERROR(Fill(tensors, target, go_on));
  if (target.executor->committed_step() == manifest.step) return absl::OkStatus();
  return absl::DataLossError("its step is not that of its manifest");
}

}  // namespace

absl::StatusOr<checkpoint::Manifest> LoadCheckpoint(const ResumeSource& source,
                                                    const std::string& path, int share, int shares,
                                                    const StateTarget& target, ProgressBoard* board,
                                                    Clock* clock,
                                                    const Communicator* communicator) {
  checkpoint::Manifest manifest;
  target.executor->BeginLoad();
  absl::Status loaded =
      WorkOnDisk(board, clock, [&](const checkpoint::GoOn& go_on) -> absl::Status {
        LS_ASSIGN_OR_RETURN(manifest, ReadManifest(source.storage, path));
        // Nobody takes the state of a generation that has ended.
        const checkpoint::GoOn wanted = [&] {
          return go_on() && (communicator == nullptr || !communicator->aborted());
        };
        return Load(source, path, manifest, share, shares, target, wanted);
      });
  target.executor->EndLoad();
  LS_RETURN_IF_ERROR(loaded);
  return manifest;
}

absl::StatusOr<std::optional<Restored>> RestoreState(Communicator* communicator,
                                                     const ResumeSource& source,
                                                     const StateTarget& target,
                                                     ProgressBoard* board, Clock* clock,
                                                     absl::Time deadline) {
  if (source.copies.count() > 1) {
    return RestoreFromCopies(communicator, source, target, board, clock, deadline);
  }
  const int rank = communicator->rank();
  Candidates candidates(source, rank);
  absl::Status found;
  if (rank == 0) {
    found = WorkOnDisk(board, clock, [&candidates](const checkpoint::GoOn& go_on) {
      return candidates.Find(go_on);
    });
  }
  LS_ASSIGN_OR_RETURN(const ReadVerdict looked, AgreeOnReading(communicator, found, deadline));
  LS_RETURN_IF_ERROR(found);
  if (looked.worst != ReadOutcome::kLoaded)
    return absl::AbortedError("rank 0 found no way to resume");
  while (true) {
    LS_ASSIGN_OR_RETURN(const Choice choice,
                        Choose(communicator, &candidates, board, clock, deadline));
    if (choice.what == Choice::kNone) return std::optional<Restored>();
    Restored restored{choice.text, {}};
    restored.evaluated_other = choice.evaluated_other != 0;
    absl::StatusOr<checkpoint::Manifest> manifest =
        LoadCheckpoint(source, restored.path, rank, communicator->world_size(), target, board,
                       clock, communicator);
    absl::Status loaded = manifest.status();
    if (absl::IsNotFound(loaded)) {
      loaded = WorkOnDisk(board, clock, [&](const checkpoint::GoOn&) {
        return WithoutFile(source.storage, restored.path, manifest.status());
      });
    }
    const absl::StatusOr<ReadVerdict> verdict = AgreeOnReading(communicator, loaded, deadline);
    if (verdict.ok() && verdict->worst == ReadOutcome::kLoaded) {
      restored.manifest = *std::move(manifest);
      return std::optional<Restored>(std::move(restored));
    }
    target.executor->InitState();
    if (absl::IsCancelled(loaded)) LS_RETURN_IF_ERROR(verdict.status());
    if (!loaded.ok() && !checkpoint::IsDamage(loaded)) {
      return Unreadable(rank, restored.path, loaded);
    }
    LS_RETURN_IF_ERROR(verdict.status());
    if (verdict->worst == ReadOutcome::kUnreadable) {
      return absl::AbortedError(
          absl::StrCat("rank ", verdict->rank, " cannot read the checkpoint ", restored.path));
    }
    if (!loaded.ok()) {
      LS_LOG_WARNING << "the checkpoint " << restored.path
                     << " is damaged, an earlier one is looked for: " << loaded.message();
    }
  }
}

std::optional<EvalResult> EvaluationOf(const checkpoint::Manifest& manifest) {
  EvalResult eval;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (manifest.eval.empty() ||
      !google::protobuf::util::JsonStringToMessage(manifest.eval, &eval, options).ok()) {
    return std::nullopt;
  }
  return eval;
}

std::optional<Train> TrainOf(const checkpoint::Manifest& manifest) {
  Train train;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(manifest.train, &train, options).ok()) {
    return std::nullopt;
  }
  return train;
}

absl::StatusOr<bool> BringBest(int rank, checkpoint::Storage* storage, const Restored& restored,
                               const std::string& path, Checkpointer* checkpointer,
                               const std::function<bool()>& go_on) {
  const checkpoint::Manifest& manifest = restored.manifest;
  if (manifest.best_step == 0) return false;
  const std::string folder = restored.path.substr(0, restored.path.rfind('/') + 1);
  const std::string from = folder + checkpoint::BestName(manifest.best_step);
  const absl::StatusOr<checkpoint::HashedFile> hashed = checkpoint::HashFile(storage, from, go_on);
  absl::Status brought = hashed.status();
  if (!brought.ok() && !checkpoint::IsDamage(brought)) return Unreadable(rank, from, brought);
  if (brought.ok() && hashed->sha256 != manifest.best_sha256) {
    brought = absl::DataLossError(from + " is not what was written: its sha256 differs");
  }
  const bool kept = brought.ok() && from == checkpointer->BestPath(manifest.best_step);
  const std::string to = path.substr(0, path.rfind('/'));
  // Nobody else removes there what a copy left whose writer died.
  checkpoint::Tidy(storage, to, "", -1).IgnoreError();
  if (brought.ok()) brought = storage->MakeFolder(to);
  if (brought.ok()) brought = storage->Link(from, path, go_on);
  checkpoint::FileMatch match = checkpoint::FileMatch::kUnknown;
  if (brought.ok()) {
    match = checkpoint::FileMatch::kSame;
  } else if (!manifest.best_sha256.empty()) {
    match = checkpoint::MatchFile(storage, path, manifest.best_sha256, go_on);
  }
  // Other ones may be of steps that are made again.
  if (match == checkpoint::FileMatch::kOther) storage->Remove(path).IgnoreError();
  if (match != checkpoint::FileMatch::kSame) {
    // Those of the state itself are written before the first step.
    if (manifest.best_step != manifest.step) {
      LS_LOG_WARNING << "the weights of step " << manifest.best_step
                     << ", the best so far, are not there: " << brought.message()
                     << "; best.safetensors comes with the next better ones";
    }
    return false;
  }
  checkpointer->KeepBest(manifest.best_step, kept ? from : path, manifest.best_sha256, go_on);
  return true;
}

}  // namespace lockstep::worker
