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
#include "checkpoint/safetensors.h"
#include "checkpoint/sha256.h"
#include "checkpoint/storage.h"
#include "common/log.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/checkpoint/checkpoint_layout.h"

namespace lockstep::worker {
namespace {

using checkpoint::FoundCheckpoint;
using checkpoint::SafetensorsFile;

constexpr size_t kPiece = size_t{4} << 20;

// What rank 0 tells the others; it travels as bytes.
struct Choice {
  enum What : int32_t { kNone, kTry, kRefuse };
  int32_t what = kNone;
  char text[4092] = {};  // the path
};

// The checkpoints that rank 0 would take, in order.
class Candidates {
 public:
  explicit Candidates(const ResumeSource& source) : source_(source) {}

  absl::Status Find() {
    const bool automatic = source_.resume == "auto";
    LS_RETURN_IF_ERROR(Add(source_.folder, !automatic));
    if (automatic || source_.resume == "never" || !found_.empty()) return absl::OkStatus();
    given_ = true;
    LS_RETURN_IF_ERROR(Add(source_.resume, false));
    if (!found_.empty()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("checkpoint.resume: there is no whole checkpoint at ",
                                            source_.resume, damaged_.empty() ? "" : ": ",
                                            absl::StrJoin(damaged_, "; ")));
  }

  // The next one to try. Errors: InvalidArgument when it is of another job.
  absl::StatusOr<const FoundCheckpoint*> Next() {
    if (next_ == found_.size()) return nullptr;
    const FoundCheckpoint& found = found_[next_++];
    const std::string difference = DifferenceOf(found.manifest, source_.identity);
    if (difference.empty()) return &found;
    if (source_.reproducible) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the checkpoint ", found.path, " is of another training: ", difference,
          "; take the job as it was, another checkpoint.dir, or resume: never to begin anew",
          " (train.reproducible: false goes on with other numbers)"));
    }
    LS_LOG_WARNING << "goes on from a checkpoint of another training (reproducible: false): "
                   << difference;
    return &found;
  }

  // Nothing is left, and it was the user who named it.
  absl::Status Exhausted() const {
    if (!given_) {
      if (!found_.empty() || !damaged_.empty()) {
        LS_LOG_WARNING << "no checkpoint in " << source_.folder << " is whole; begins at step 0";
      }
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("checkpoint.resume: no checkpoint at ", source_.resume, " is whole"));
  }

 private:
  absl::Status Add(const std::string& folder, bool own_alone) {
    LS_ASSIGN_OR_RETURN(checkpoint::FolderContents contents,
                        checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder));
    for (FoundCheckpoint& found : contents.checkpoints) {
      if (own_alone && found.manifest.run != source_.identity.run) continue;
      found_.push_back(std::move(found));
    }
    for (const std::string& why : contents.damaged) {
      LS_LOG_WARNING << "not a whole checkpoint: " << why;
    }
    damaged_ = std::move(contents.damaged);
    return absl::OkStatus();
  }

  const ResumeSource& source_;
  std::vector<FoundCheckpoint> found_;
  std::vector<std::string> damaged_;
  size_t next_ = 0;
  bool given_ = false;
};

absl::Status Fits(const engine::StateEntry& entry, const checkpoint::TensorView& tensor) {
  if (tensor.dtype == TensorDtype(entry) && tensor.bytes == entry.bytes &&
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

// Fills the state from tensors by name.
absl::Status Fill(const std::map<std::string, const checkpoint::TensorView*>& tensors,
                  const StateTarget& target, ProgressBoard* board) {
  char* const state = static_cast<char*>(target.state);
  for (const engine::StateEntry& entry : target.plan->state()) {
    const auto found = tensors.find(TensorName(entry));
    if (found == tensors.end()) {
      return absl::DataLossError(absl::StrCat("tensor '", TensorName(entry), "' is missing"));
    }
    LS_RETURN_IF_ERROR(Fits(entry, *found->second));
    for (const engine::StateRange& range : PresentOf(entry, target)) {
      for (size_t at = range.begin; at < range.end; at += kPiece) {
        std::memcpy(state + at, static_cast<const char*>(found->second->data) + (at - entry.offset),
                    std::min(kPiece, range.end - at));
        board->Moved();
      }
    }
  }
  if (tensors.size() == target.plan->state().size()) return absl::OkStatus();
  return absl::DataLossError("it has tensors that this job has not");
}

// What rank 0 does about the next candidate; all ranks get the same.
absl::StatusOr<Choice> Choose(Communicator* communicator, Candidates* candidates,
                              absl::Time deadline) {
  Choice choice;
  absl::Status refused;
  if (communicator->rank() == 0) {
    const absl::StatusOr<const FoundCheckpoint*> next = candidates->Next();
    refused = next.status();
    std::string text;
    if (!refused.ok()) {
      choice.what = Choice::kRefuse;
    } else if (*next != nullptr) {
      choice.what = Choice::kTry;
      text = (*next)->path;
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

absl::StatusOr<checkpoint::Manifest> ReadManifest(const std::string& path) {
  LS_ASSIGN_OR_RETURN(
      const std::string text,
      checkpoint::Storage::Disk()->Read(absl::StrCat(path, "/", checkpoint::kManifestName),
                                        checkpoint::kMaxManifestBytes));
  return checkpoint::ParseManifest(text);
}

// Whether every rank has done it.
absl::StatusOr<bool> AllAre(Communicator* communicator, bool mine, absl::Time deadline) {
  int32_t least = mine ? 1 : 0;
  LS_RETURN_IF_ERROR(communicator->AllReduce(&least, 1, DType::kInt32, ReduceOp::kMin,
                                             ReduceOrder::kFixed, deadline));
  return least == 1;
}

}  // namespace

absl::Status LoadCheckpoint(const std::string& path, const checkpoint::Manifest& manifest,
                            int share, int shares, const StateTarget& target,
                            ProgressBoard* board) {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, const checkpoint::TensorView*> tensors;
  int number = 0;
  for (const checkpoint::FileRecord& record : manifest.files) {
    if (number++ % shares == share) {
      LS_RETURN_IF_ERROR(checkpoint::CheckFile(path, record, [board] {
        board->Moved();
        return true;
      }));
    }
    if (!absl::EndsWith(record.name, ".safetensors")) continue;
    LS_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(absl::StrCat(path, "/", record.name)));
    for (const checkpoint::TensorView& tensor : file->tensors()) {
      if (tensors.emplace(tensor.name, &tensor).second) continue;
      return absl::DataLossError(absl::StrCat("tensor '", tensor.name, "' is there twice"));
    }
    files.push_back(std::move(file));
  }
  LS_RETURN_IF_ERROR(Fill(tensors, target, board));
  if (target.executor->committed_step() == manifest.step) return absl::OkStatus();
  return absl::DataLossError("its step is not that of its manifest");
}

absl::StatusOr<std::optional<Restored>> RestoreState(Communicator* communicator,
                                                     const ResumeSource& source,
                                                     const StateTarget& target,
                                                     ProgressBoard* board, absl::Time deadline) {
  Candidates candidates(source);
  absl::Status found;
  if (communicator->rank() == 0) found = candidates.Find();
  LS_ASSIGN_OR_RETURN(const bool any, AllAre(communicator, found.ok(), deadline));
  LS_RETURN_IF_ERROR(found);
  if (!any) return absl::AbortedError("rank 0 found no way to resume");
  while (true) {
    LS_ASSIGN_OR_RETURN(const Choice choice, Choose(communicator, &candidates, deadline));
    if (choice.what == Choice::kNone) return std::optional<Restored>();
    Restored restored{choice.text, {}};
    absl::StatusOr<checkpoint::Manifest> manifest = ReadManifest(restored.path);
    absl::Status loaded = manifest.status();
    target.executor->BeginLoad();
    if (loaded.ok()) {
      loaded = LoadCheckpoint(restored.path, *manifest, communicator->rank(),
                              communicator->world_size(), target, board);
    }
    target.executor->EndLoad();
    const absl::StatusOr<bool> all = AllAre(communicator, loaded.ok(), deadline);
    if (all.ok() && *all) {
      restored.manifest = *std::move(manifest);
      return std::optional<Restored>(std::move(restored));
    }
    target.executor->InitState();
    LS_RETURN_IF_ERROR(all.status());
    if (!loaded.ok()) {
      LS_LOG_WARNING << "the checkpoint " << restored.path
                     << " is damaged, the one before it is used: " << loaded.message();
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

void BringBest(const Restored& restored, const std::string& path, Checkpointer* checkpointer) {
  const checkpoint::Manifest& manifest = restored.manifest;
  if (manifest.best_step == 0) return;
  const std::string folder = restored.path.substr(0, restored.path.rfind('/') + 1);
  const std::string from = folder + checkpoint::BestName(manifest.best_step);
  const absl::StatusOr<std::string> sha256 = checkpoint::Sha256OfFile(from);
  absl::Status brought = sha256.status();
  if (brought.ok() && *sha256 != manifest.best_sha256) {
    brought = absl::DataLossError(from + " is not what was written: its sha256 differs");
  }
  checkpoint::Storage* const disk = checkpoint::Storage::Disk();
  if (brought.ok()) brought = disk->MakeFolder(path.substr(0, path.rfind('/')));
  if (brought.ok()) brought = disk->Link(from, path);
  if (!brought.ok()) {
    LS_LOG_WARNING << "the weights of step " << manifest.best_step
                   << ", the best so far, are not there: " << brought.message()
                   << "; best.safetensors comes with the next better ones";
    return;
  }
  if (from != checkpointer->BestPath(manifest.best_step)) {
    checkpointer->KeepBest(manifest.best_step, path);
  }
}

}  // namespace lockstep::worker
