// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint_identity.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "job/meaning/defaults.h"
#include "job/meaning/units.h"
#include "proto/message_json.h"

namespace lockstep::worker {
namespace {

constexpr size_t kNamed = 6;  // differences that are named one by one

// Without what decides no number.
Train Deciding(Train train) {
  train.clear_reproducible();
  train.clear_zero_stage();
  train.mutable_data()->clear_loader();
  // What it decides is how many samples there are, which the data's own identity says.
  if (train.data().has_csv()) train.mutable_data()->mutable_csv()->clear_header();
  // Without a vocabulary it pads nothing, and is refused today.
  if (train.data().has_npy() && train.data().npy().vocab() == 0) {
    train.mutable_data()->mutable_npy()->clear_padding();
  }
  if (train.has_passes()) {
    train.mutable_passes()->clear_keep_constants();
    train.mutable_passes()->clear_keep_dropout();
    if (train.passes().ByteSizeLong() == 0) train.clear_passes();
  }
  return train;
}

// Returns whether a longer run evaluates where the run `train` ends, as it does whatever its
// length.
bool EndsOnEvaluation(const Train& train) {
  const absl::StatusOr<job::Every> every =
      job::ParseEvery(train.eval().every().empty() ? job::kDefaultEvalEvery : train.eval().every());
  if (!every.ok()) return false;
  if (train.epochs() > 0) return every->epochs > 0 && train.epochs() % every->epochs == 0;
  return every->steps > 0 && train.steps() % every->steps == 0;
}

// Returns whether the run `now` begins with all that the run `before` does, and is longer. What
// follows from evaluations does where the shorter one had no other than the longer one.
bool IsLonger(const Train& now, const Train& before) {
  switch (now.schedule().kind_case()) {
    case Schedule::KIND_NOT_SET:
    case Schedule::kConstant:
    case Schedule::kStep:
    case Schedule::kExponential:
      break;
    default:  // its rates depend on the length
      return false;
  }
  const bool by_evaluations = now.has_early_stop() || now.has_best();
  if (by_evaluations && !EndsOnEvaluation(before)) return false;
  if (before.epochs() > 0) return now.epochs() > before.epochs();
  return before.steps() > 0 && now.steps() > before.steps();
}

// Returns whether `saved` is of the job's plan.
bool HasPlan(const checkpoint::Manifest& saved, const checkpoint::Manifest& job) {
  const std::vector<std::string>& older = job.older_plan_hashes;
  return saved.plan_hash == job.plan_hash ||
         std::find(older.begin(), older.end(), saved.plan_hash) != older.end();
}

bool ReadTrain(const std::string& json, Train* train) {
  google::protobuf::util::JsonParseOptions options;
  return google::protobuf::util::JsonStringToMessage(json, train, options).ok();
}

// "modified: optimizer.sgd.lr: 0.1 -> 0.05" as "train.optimizer.sgd.lr: 0.1 -> 0.05".
std::string DifferenceText(absl::string_view line) {
  if (absl::ConsumePrefix(&line, "modified: ")) return absl::StrCat("train.", line);
  if (absl::ConsumePrefix(&line, "added: ")) return absl::StrCat("train.", line, " is new");
  if (!absl::ConsumePrefix(&line, "deleted: ")) return std::string(line);
  std::string gone = absl::StrCat("train.", line, " is gone");
  // Older versions wrote the default of token arrays down.
  if (absl::StartsWith(line, "eval.block")) {
    absl::StrAppend(&gone, " (without it the block is another one than then)");
  }
  return gone;
}

}  // namespace

checkpoint::Manifest IdentityOf(const JobSpec& job, const std::string& run,
                                const engine::Plan& plan, const std::string& device_hash,
                                const std::string& device) {
  checkpoint::Manifest manifest;
  manifest.train = MessageJson(job.train());
  manifest.run = run;
  manifest.plan_hash = plan.math_hash();
  manifest.older_plan_hashes = {plan.older_math_hash(), plan.hash()};
  manifest.device_hash = device_hash;
  manifest.device = device;
  manifest.threads = plan.spec().threads;
  return manifest;
}

CheckpointMark MarkOf(const checkpoint::Manifest& manifest, const std::string& path) {
  CheckpointMark mark;
  mark.set_generation(manifest.generation);
  mark.set_step(manifest.step);
  mark.set_path(path);
  return mark;
}

namespace {

// Returns the first of `records` whose path `others` have not, or null.
const checkpoint::DataRecord* RecordWithoutOther(
    const std::vector<checkpoint::DataRecord>& records,
    const std::vector<checkpoint::DataRecord>& others) {
  for (const checkpoint::DataRecord& record : records) {
    const auto same = [&](const checkpoint::DataRecord& each) { return each.path == record.path; };
    if (std::none_of(others.begin(), others.end(), same)) return &record;
  }
  return nullptr;
}

// Appends what of the data differs, where both know it.
void AddDataDifferences(const checkpoint::Manifest& saved, const checkpoint::Manifest& job,
                        std::vector<std::string>* differences) {
  if (saved.samples > 0 && job.samples > 0 && saved.samples != job.samples) {
    differences->push_back(
        absl::StrCat("train.data: ", saved.samples, " -> ", job.samples, " samples"));
  }
  for (const checkpoint::DataRecord& before : saved.data) {
    const auto now =
        std::find_if(job.data.begin(), job.data.end(),
                     [&](const checkpoint::DataRecord& file) { return file.path == before.path; });
    if (now == job.data.end() || *now == before) continue;
    if (differences->size() == kNamed) {
      differences->push_back("and more");
      return;
    }
    differences->push_back(absl::StrCat("train.data: ", before.path, " is not what it was"));
  }
  // The same source, so that one is opened instead of the other: with ".gz" or without. Files that
  // one side alone knows say nothing: older versions wrote down those that nobody opens, too.
  const checkpoint::DataRecord* const was = RecordWithoutOther(saved.data, job.data);
  const checkpoint::DataRecord* const is = RecordWithoutOther(job.data, saved.data);
  if (was == nullptr || is == nullptr) return;
  differences->push_back(
      absl::StrCat("train.data: ", is->path, " is opened where ", was->path, " was"));
}

}  // namespace

std::string DataDifferenceOf(const checkpoint::Manifest& saved, const checkpoint::Manifest& job) {
  std::vector<std::string> differences;
  AddDataDifferences(saved, job, &differences);
  return absl::StrJoin(differences, "; ");
}

bool HasEvaluatedOther(const checkpoint::Manifest& saved, const checkpoint::Manifest& job) {
  Train before, now;
  if (!ReadTrain(saved.train, &before) || !ReadTrain(job.train, &now)) return true;
  before = Deciding(std::move(before));
  now = Deciding(std::move(now));
  return before.eval().block() != now.eval().block() ||
         !google::protobuf::util::MessageDifferencer::Equals(before.data(), now.data()) ||
         !DataDifferenceOf(saved, job).empty();
}

bool IsMadeLonger(const checkpoint::Manifest& saved, const checkpoint::Manifest& job) {
  Train before, now;
  if (!ReadTrain(saved.train, &before) || !ReadTrain(job.train, &now)) return false;
  // Older versions' hashes of plans tell lengths apart.
  return IsLonger(now, before) && HasPlan(saved, job);
}

std::string DifferenceOf(const checkpoint::Manifest& saved, const checkpoint::Manifest& job) {
  Train before, now;
  if (!ReadTrain(saved.train, &before) || !ReadTrain(job.train, &now)) {
    return "its train section has fields that this version of lockstep does not know";
  }
  if (IsMadeLonger(saved, job)) {
    before.set_epochs(now.epochs());
    before.set_steps(now.steps());
  }
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  std::vector<std::string> differences;
  if (!differencer.Compare(Deciding(before), Deciding(now))) {
    for (const absl::string_view line : absl::StrSplit(report, '\n', absl::SkipEmpty())) {
      if (differences.size() == kNamed) {
        differences.push_back("and more");
        break;
      }
      differences.push_back(DifferenceText(line));
    }
  }
  if (differences.empty()) AddDataDifferences(saved, job, &differences);
  if (differences.empty() && !HasPlan(saved, job)) {
    std::string other = "this build of lockstep compiles another plan for the same job";
    if (now.recompute() == "auto") {
      absl::StrAppend(&other,
                      ", or recompute: auto chose another level for an older build (then it ",
                      "goes on with as many workers and as much resources.memory, or on GPUs "
                      "resources.gpu_memory, as before)");
    }
    differences.push_back(std::move(other));
  }
  if (differences.empty() && saved.device_hash != job.device_hash) {
    differences.push_back(
        absl::StrCat("the device computes other bits: ", saved.device, " -> ", job.device));
  }
  return absl::StrJoin(differences, "; ");
}

int64_t RunNumberOf(const checkpoint::Manifest& job, bool takes_over,
                    const checkpoint::FolderContents& contents) {
  if (takes_over) return checkpoint::RunNumber(contents, job.run);
  checkpoint::FolderContents followed;
  for (const checkpoint::FoundCheckpoint& found : contents.checkpoints) {
    if (found.manifest.run != job.run && !DifferenceOf(found.manifest, job).empty()) continue;
    followed.checkpoints.push_back(found);
  }
  return checkpoint::RunNumber(followed, job.run);
}

checkpoint::Manifest AmongRivals(const checkpoint::Manifest& job, bool takes_over,
                                 const checkpoint::FolderContents& contents) {
  checkpoint::Manifest own = job;
  own.data.clear();  // numbers are given before the data is known
  const int64_t here = RunNumberOf(own, takes_over, contents);
  own.sequence = job.sequence == 0 ? here : std::min(job.sequence, here);
  return own;
}

absl::Status CheckNoRivalsBest(const checkpoint::Manifest& job, bool takes_over,
                               const std::string& folder,
                               const checkpoint::FolderContents& contents) {
  const checkpoint::FoundCheckpoint* const rival =
      checkpoint::RivalOfBest(contents, AmongRivals(job, takes_over, contents));
  return rival == nullptr ? absl::OkStatus() : checkpoint::RivalError(folder, rival->manifest);
}

}  // namespace lockstep::worker
