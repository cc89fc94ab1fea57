// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/folder_copies.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checkpoint/checkpoint_folder.h"
#include "common/hmac.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/control/disk_wait.h"
#include "worker/control/membership.h"

namespace lockstep::worker {
namespace {

constexpr const char* kPrefix = ".seen-";
// Marks are there for as long as a generation begins; nobody looks for one that is so old.
constexpr int64_t kOldSeconds = 3600;

// Unguessable without the generation's secret, and another one for each folder.
std::string Nonce(const Generation& generation, const std::string& path) {
  const std::string key = generation.secret().empty() ? "none" : generation.secret();
  const std::string hash =
      HmacSha256(key, absl::StrCat("folder ", path, " in generation ", generation.generation()));
  return absl::BytesToHexString(absl::string_view(hash).substr(0, 16));
}

std::string FileOf(const SharedFolder& folder, const std::string& nonce, int rank) {
  return absl::StrCat(folder.path, "/", kPrefix, nonce, "-", rank);
}

// When it was changed, by the clock of the folder's file system; nothing: it cannot be seen.
std::optional<int64_t> ChangedAt(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return std::nullopt;
  return static_cast<int64_t>(found.st_mtim.tv_sec);
}

// Removes what members that died left long ago. What is fresh may be looked for at this moment, by
// another job or by a worker of another version, so `own`, made just now, tells the time.
void RemoveOld(const SharedFolder& folder, const std::string& own) {
  const std::optional<int64_t> now = ChangedAt(own);
  const auto names = folder.storage->List(folder.path);
  if (!now.has_value() || !names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const std::string path = absl::StrCat(folder.path, "/", name);
    const std::optional<int64_t> changed = ChangedAt(path);
    if (!changed.has_value() || *changed >= *now - kOldSeconds) continue;
    folder.storage->Remove(path).IgnoreError();
  }
}

// Does `work` in a thread, as a rank that is busy with its disk.
void OnDisk(ProgressBoard* board, Clock* clock, const std::function<void()>& work) {
  const auto phase = static_cast<Phase>(board->phase.load(std::memory_order_relaxed));
  board->Enter(SAVING);
  WorkOnDisk(board, clock, [&work](const std::function<bool()>&) {
    work();
    return absl::OkStatus();
  }).IgnoreError();
  board->Enter(phase);
}

// Makes this rank's file, and removes those that are old.
absl::Status Leave(const SharedFolder& folder, const std::string& nonce, int rank) {
  if (folder.check_mounted != nullptr) LS_RETURN_IF_ERROR(folder.check_mounted());
  LS_RETURN_IF_ERROR(folder.storage->MakeFolder(folder.path));
  const std::string file = FileOf(folder, nonce, rank);
  LS_RETURN_IF_ERROR(checkpoint::WriteWhole(folder.storage, file, nonce));
  RemoveOld(folder, file);
  return absl::OkStatus();
}

int64_t RunNumberIn(const SharedFolder& folder) {
  if (folder.job == nullptr) return 0;
  const auto contents = checkpoint::FindCheckpoints(folder.storage, folder.path);
  return contents.ok() ? RunNumberOf(*folder.job, folder.takes_over, *contents) : 0;
}

// Row::left.
constexpr int32_t kNotLeft = 0, kLeft = 1, kNoRoom = 2;

int32_t Told(const absl::Status& left) {
  if (left.ok()) return kLeft;
  return absl::IsResourceExhausted(left) ? kNoRoom : kNotLeft;
}

// What a rank tells the others, twice; it travels as bytes.
struct Row {
  int64_t run_number = 0;
  int32_t left = 0;
  // First what it knows from before (Sharing; versions that keep nothing say 0), then who writes
  // where it sees the folder.
  int32_t writer = 0;
};

absl::StatusOr<std::vector<Row>> Exchange(Communicator* communicator, const Row& mine,
                                          absl::Time deadline) {
  std::vector<Row> rows(static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(
      communicator->AllGather(&mine, rows.data(), sizeof(Row), DType::kUInt8, deadline));
  return rows;
}

// Returns what those know together who were there before.
Sharing SharingBefore(const std::vector<Row>& rows) {
  Sharing known = Sharing::kUnknown;
  for (const Row& row : rows) {
    if (row.writer == static_cast<int32_t>(Sharing::kApart)) return Sharing::kApart;
    if (row.writer == static_cast<int32_t>(Sharing::kShared)) known = Sharing::kShared;
  }
  return known;
}

// The lowest rank whose file is seen here, or, where `trusts`, that had no room for one; `rank`
// when there is none before.
int FirstSeen(const SharedFolder& folder, const std::string& nonce, const std::vector<Row>& rows,
              bool trusts, int rank) {
  for (int other = 0; other < rank; ++other) {
    const int32_t left = rows[static_cast<size_t>(other)].left;
    if (left == kNoRoom && trusts) return other;
    if (left != kLeft) continue;
    const auto text = folder.storage->Read(FileOf(folder, nonce, other), nonce.size());
    if (text.ok() && *text == nonce) return other;
  }
  return rank;
}

// Returns the copies that there are by what the first ranks of the hosts say.
FolderCopies CopiesOf(const std::vector<Row>& rows, const std::vector<int>& firsts) {
  FolderCopies copies;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    int writer = rows[static_cast<size_t>(firsts[rank])].writer;
    while (rows[static_cast<size_t>(writer)].writer < writer) {
      writer = rows[static_cast<size_t>(writer)].writer;
    }
    copies.writers.push_back(writer);
    copies.run_number = std::max(copies.run_number, rows[rank].run_number);
  }
  return copies;
}

// Checks what the job says against what was seen.
absl::Status CheckStated(const Generation& generation, const SharedFolder& folder,
                         const FolderCopies& copies, int rank) {
  const auto host = [&](int of) { return generation.members(of).host(); };
  if (folder.stated == "never" && copies.count() == 1 && rank == 0) {
    LS_LOG_WARNING << folder.name << ": all hosts see the same " << folder.path
                   << ", though the job says that it is never shared; one copy is kept there";
  }
  if (folder.stated != "always" || copies.count() == 1) return absl::OkStatus();
  if (copies.WriterOf(rank) != copies.WriterOf(0) && copies.writes(rank)) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder.name, ": host ", host(rank), " does not see in ", folder.path,
                     " what host ", host(0), " wrote there, and the job says 'shared: always'",
                     ": mount it on ", host(rank), ", or let the job say 'auto'"));
  }
  return absl::AbortedError(absl::StrCat(folder.name, " is not shared by all hosts"));
}

// `known`: that is what the hosts see, not what a full disk hides.
void TellOfCopies(const SharedFolder& folder, int count, bool known) {
  if (known) {
    LS_LOG_INFO << folder.name << ", " << folder.path << ", is not shared: there are " << count
                << " of it";
    return;
  }
  LS_LOG_WARNING << folder.name << ": not all hosts have room to write to " << folder.path
                 << ", so that nobody knows which of them share it; it is taken for " << count
                 << " folders";
}

}  // namespace

int FolderCopies::count() const {
  return writers.empty() ? 1 : static_cast<int>(std::set(writers.begin(), writers.end()).size());
}

FolderCopies::Share FolderCopies::ShareOf(int rank) const {
  Share share{0, 0};
  for (size_t other = 0; other < writers.size(); ++other) {
    if (writers[other] != WriterOf(rank)) continue;
    ++share.of;
    share.place += static_cast<int>(other) < rank ? 1 : 0;
  }
  return share;
}

absl::StatusOr<FolderCopies> LookAtFolder(Communicator* communicator, const Generation& generation,
                                          const SharedFolder& folder, ProgressBoard* board,
                                          Clock* clock, absl::Time deadline) {
  const std::vector<int> firsts = FirstRanks(generation);
  FolderCopies copies;
  if (std::all_of(firsts.begin(), firsts.end(), [](int first) { return first == 0; })) {
    return copies;
  }
  const int rank = communicator->rank();
  const bool first = firsts[static_cast<size_t>(rank)] == rank;
  const std::string nonce = Nonce(generation, folder.path);
  const auto on_disk = [&](const std::function<void()>& work) { OnDisk(board, clock, work); };
  const Sharing known = folder.before == nullptr ? Sharing::kUnknown : *folder.before;
  Row mine;
  mine.writer = static_cast<int32_t>(known);
  if (first) on_disk([&] { mine.left = Told(Leave(folder, nonce, rank)); });
  LS_ASSIGN_OR_RETURN(const std::vector<Row> rows, Exchange(communicator, mine, deadline));
  const auto told = [&](int32_t what) {
    return std::any_of(firsts.begin(), firsts.end(), [&](int first_rank) {
      return rows[static_cast<size_t>(first_rank)].left == what;
    });
  };
  // Where a disk is full nothing can be said against the job's own word, or against what was seen
  // before; a host that comes and has room has another disk.
  const bool no_room = told(kNoRoom), stated = folder.stated == "always" && !told(kNotLeft);
  const Sharing before = SharingBefore(rows);
  const bool trusts = before == Sharing::kShared && mine.left != kNotLeft &&
                      (known == before || mine.left == kNoRoom);
  if (no_room && (stated || before == Sharing::kShared) && rank == 0) {
    LS_LOG_WARNING << folder.name << ": not all hosts have room to write to " << folder.path << "; "
                   << (stated ? "the job says that it is shared" : "they shared it before")
                   << ", which is taken on trust";
  }
  mine.writer = 0;
  if (first) {
    on_disk([&] {
      mine.run_number = RunNumberIn(folder);
      if (!no_room || !stated) mine.writer = FirstSeen(folder, nonce, rows, trusts, rank);
    });
  }
  const auto exchanged = Exchange(communicator, mine, deadline);
  if (mine.left == kLeft) {
    on_disk([&] { folder.storage->Remove(FileOf(folder, nonce, rank)).IgnoreError(); });
  }
  LS_RETURN_IF_ERROR(exchanged.status());
  copies = CopiesOf(*exchanged, firsts);
  if (folder.before != nullptr && !no_room) {
    *folder.before = copies.count() == 1 ? Sharing::kShared : Sharing::kApart;
  }
  LS_RETURN_IF_ERROR(CheckStated(generation, folder, copies, rank));
  if (copies.count() == 1) {
    copies.writers.clear();
  } else if (rank == 0) {
    TellOfCopies(folder, copies.count(), !no_room || before != Sharing::kUnknown);
  }
  return copies;
}

}  // namespace lockstep::worker
