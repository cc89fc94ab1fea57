// SPDX-License-Identifier: Apache-2.0
// What a checkpoint is of, and whether a job may go on from it. A job may when going on gives the
// bits that it would have had without a stop: the same `train` section, data, plan and kind of
// device.
// How many workers and threads there were and are does not matter.
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_IDENTITY_H_
#define LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// Returns what this job's checkpoints say of themselves; step, files, evaluations and what its data
// is are not set.
checkpoint::Manifest IdentityOf(const JobSpec& job, const std::string& run,
                                const engine::Plan& plan, const std::string& device_hash,
                                const std::string& device);

// Where a checkpoint stands among those of its run.
CheckpointMark MarkOf(const checkpoint::Manifest& manifest, const std::string& path);

// Returns what of the math differs between a checkpoint and the job that would go on from it, such
// as "train.optimizer.sgd.lr: 0.1 -> 0.05"; empty: nothing does. A job that is longer than the one
// which saved it, and computes the same until there, differs in nothing.
std::string DifferenceOf(const checkpoint::Manifest& saved, const checkpoint::Manifest& job);

// Returns whether the job is longer than the one which saved it, computes the same until there, and
// has the same decisions by evaluations behind it.
bool IsMadeLonger(const checkpoint::Manifest& saved, const checkpoint::Manifest& job);

// Returns the number (checkpoint::RunNumber) of the run of `job` among those in a folder with
// `contents`. A run that `takes_over` the folder comes after all that are there; another one goes
// on from its own training alone, and found no other when it began: what there is of others came
// since, and is its rivals'.
int64_t RunNumberOf(const checkpoint::Manifest& job, bool takes_over,
                    const checkpoint::FolderContents& contents);

// Returns whether what `saved` has evaluated says nothing of the job's test split: `train.data` or
// `train.eval.block` is another, the files are, or the section cannot be read.
bool HasEvaluatedOther(const checkpoint::Manifest& saved, const checkpoint::Manifest& job);

// Returns `job` as its rivals (checkpoint::IsRival) in a folder with `contents` are told: with the
// number that it has by what lies there, where that is lower than its own or it has none. Its own
// may count what lies in other hosts' folders, and what another training saved here stays.
checkpoint::Manifest AmongRivals(const checkpoint::Manifest& job, bool takes_over,
                                 const checkpoint::FolderContents& contents);

// Checks that no rival in `folder`, with `contents`, knows other best weights by the name of those
// of `job`. Errors: that of checkpoint::RivalError.
absl::Status CheckNoRivalsBest(const checkpoint::Manifest& job, bool takes_over,
                               const std::string& folder,
                               const checkpoint::FolderContents& contents);

// Returns what of the data alone differs, where both know it.
std::string DataDifferenceOf(const checkpoint::Manifest& saved, const checkpoint::Manifest& job);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_IDENTITY_H_
