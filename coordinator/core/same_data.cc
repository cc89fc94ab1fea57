// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/same_data.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/generation.h"

namespace lockstep::coordinator {
namespace {

// Returns the first file of `worker`, whose path begins with `folder`, that `other` has none of
// that path for, or null.
const DataFile* FileWithoutOther(const Worker& worker, const Worker& other,
                                 const std::string& folder = "") {
  for (const DataFile& file : worker.ready->data()) {
    if (!absl::StartsWith(file.path(), folder)) continue;
    const auto& files = other.ready->data();
    const auto same = [&file](const DataFile& each) { return each.path() == file.path(); };
    if (std::none_of(files.begin(), files.end(), same)) return &file;
  }
  return nullptr;
}

std::string WhoseData(const Worker& worker, const Worker& first) {
  return absl::StrCat("the data of rank ", worker.slot, " on host ", worker.host,
                      " are not those of rank ", first.slot, " on host ", first.host, ": ");
}

// Returns whether the worker tells of single files in the folder, as it does unless they are many.
bool Lists(const Worker& worker, const std::string& folder) {
  const auto& files = worker.ready->data();
  return std::any_of(files.begin(), files.end(), [&folder](const DataFile& file) {
    return absl::StartsWith(file.path(), folder);
  });
}

// Returns what is other about a folder.
std::string OtherFolder(const Worker& worker, const DataFile& here, const Worker& first,
                        const DataFile& there) {
  std::string what = absl::StrCat("has ", here.bytes(), " files on ", worker.host, " and ",
                                  there.bytes(), " on ", first.host);
  if (here.bytes() == there.bytes()) what = "has other files or names";
  // As it was written, maybe with a slash at its end.
  const std::string folder = here.path().substr(0, here.path().find_last_not_of('/') + 1) + "/";
  if (!Lists(worker, folder) || !Lists(first, folder)) return what;
  const DataFile* const only_here = FileWithoutOther(worker, first, folder);
  const DataFile* const only_there = FileWithoutOther(first, worker, folder);
  if (only_here != nullptr) {
    absl::StrAppend(&what, ", ", only_here->path(), " on ", worker.host, " alone");
  }
  if (only_there != nullptr) {
    absl::StrAppend(&what, ", ", only_there->path(), " on ", first.host, " alone");
  }
  return what;
}

// Returns what is other about a file of the same path on both.
std::string OtherFile(const Worker& worker, const DataFile& here, const Worker& first,
                      const DataFile& there) {
  if (here.folder() || there.folder()) return OtherFolder(worker, here, first, there);
  if (here.bytes() == there.bytes()) return "is as long on both and has other bytes";
  return absl::StrCat("has ", here.bytes(), " bytes on ", worker.host, " and ", there.bytes(),
                      " on ", first.host);
}

}  // namespace

std::string OtherData(const Worker& worker, const Worker& first) {
  for (const DataFile& expected : first.ready->data()) {
    for (const DataFile& file : worker.ready->data()) {
      if (file.path() != expected.path()) continue;
      if (file.bytes() == expected.bytes() && file.hash() == expected.hash()) continue;
      return absl::StrCat(WhoseData(worker, first), file.path(), " ",
                          OtherFile(worker, file, first, expected),
                          "; copy it from one host to the other, or share the folder");
    }
  }
  // The same source, so that one is opened instead of the other: with ".gz" or without. Files that
  // one side alone tells of say nothing: older versions tell of those that nobody opens, too.
  const DataFile* const here = FileWithoutOther(worker, first);
  const DataFile* const there = FileWithoutOther(first, worker);
  if (here == nullptr || there == nullptr) return "";
  return absl::StrCat(WhoseData(worker, first), worker.host, " opens ", here->path(), ", and ",
                      first.host, " ", there->path(),
                      " instead; have the same file on both, or share the folder");
}

const Worker* DataSpeaker(const Job& job, const Members& members) {
  const Worker* first = nullptr;
  for (const Worker* worker : members) {
    if (worker->ready->data().empty()) continue;
    if (IsMember(job, *worker)) return worker;
    if (first == nullptr) first = worker;
  }
  return first;
}

namespace {

// The first one on the node of `worker` that says how it found the files, a member before others.
const Worker* StampSpeaker(const Job& job, const Members& members, const Worker& worker) {
  const Worker* first = nullptr;
  for (const Worker* other : members) {
    if (other->node_id != worker.node_id || other->ready->data_stamp() == 0) continue;
    if (IsMember(job, *other)) return other;
    if (first == nullptr) first = other;
  }
  return first;
}

}  // namespace

void TellWrittenData(Context& context, const Job& job, const Members& members) {
  for (const Worker* worker : members) {
    if (IsMember(job, *worker) || worker->ready->data_stamp() == 0) continue;
    const Worker& first = *StampSpeaker(job, members, *worker);
    if (worker->ready->data_stamp() == first.ready->data_stamp()) continue;
    AppendNotice(context, job,
                 absl::StrCat("rank ", worker->slot, " on ", worker->host, " (pid ", worker->pid,
                              "): files of its data were replaced or written to since rank ",
                              first.slot, " opened them; if they hold something else now, it ",
                              "trains on other samples"));
  }
}

void NoteSameData(const Members& members, Job& job) {
  for (const Worker* worker : members) {
    if (IsMember(job, *worker)) continue;  // it may have opened them before they were others
    const auto excluded = job.excluded.find(worker->node_id);
    if (excluded == job.excluded.end()) continue;
    // One that was there before it was found out has opened what was there before. Of one that was
    // there before a restart of the coordinator nothing says since when.
    if (worker->since < excluded->second.until || worker->since <= job.forgiven) continue;
    excluded->second.other_data = false;
  }
}

}  // namespace lockstep::coordinator
