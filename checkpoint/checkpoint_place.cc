// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/durable_file.h"
#include "common/status.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = 1 << 16;

struct Place {
  std::string folder;  // absolute
  std::string mount_point;
  std::string run;   // id; empty: a version that noted none wrote it
  std::string real;  // the folder without links, as it was then; empty: likewise
};

// Returns `path` from the root on, without ".", ".." and a slash at its end.
std::string Absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  if (error) return path;
  if (!absolute.has_filename() && absolute.has_relative_path()) absolute = absolute.parent_path();
  return absolute.string();
}

// Returns `path` without the links on the way that are there; empty: that cannot be seen.
std::string Real(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(Absolute(path), error);
  return error ? "" : real.string();
}

// Returns whether `folder` is the one that was noted: by their words, as what is not mounted cannot
// be looked at, or by the links on the way, of the noted one as they were then.
bool IsSameFolder(const Place& noted, const std::string& folder) {
  const std::string absolute = Absolute(folder);
  if (absolute == noted.folder || absolute == noted.real) return true;
  const std::string real = Real(folder);
  return !real.empty() && (real == noted.folder || real == noted.real);
}

// Returns what the run of `run_dir` has noted; nothing when it has not, or nothing that can be
// read.
std::optional<Place> PlaceOf(Storage* storage, const std::string& run_dir) {
  const auto text = storage->Read(absl::StrCat(run_dir, "/", kPlaceName), kMostBytes);
  if (!text.ok()) return std::nullopt;
  const json whole = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object()) return std::nullopt;
  const auto text_of = [&whole](const char* name) {
    const auto found = whole.find(name);
    return found != whole.end() && found->is_string() ? found->get<std::string>() : "";
  };
  Place place{text_of("folder"), text_of("mount_point"), text_of("run"), text_of("real_folder")};
  if (place.folder.empty() || place.mount_point.empty()) return std::nullopt;
  return place;
}

// Returns whose `path` is, which may be a link; nothing when that cannot be seen.
std::optional<uid_t> OwnerOf(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 ? std::optional(status.st_uid) : std::nullopt;
}

// Returns whether the run of that id itself noted that it has checkpoints in `folder`.
bool IsOwn(const Place& noted, const std::string& run, const std::string& folder) {
  return (noted.run == run || noted.run.empty()) && IsSameFolder(noted, folder);
}

// What a run says of its checkpoints that are not there any more.
absl::Status Missed(const std::string& folder, const Place& place, const std::string& run_dir) {
  const std::string missed = absl::StrCat("this run has saved checkpoints in ", folder,
                                          ", and there is none any more: bring them back, or ");
  if (!place.run.empty()) {
    return absl::NotFoundError(absl::StrCat(missed, "start the job again to begin anew"));
  }
  // It may be of an earlier run in the same folder. Whoever begins anew by mistake loses more.
  return absl::NotFoundError(absl::StrCat(missed, "remove ", run_dir, "/", kPlaceName,
                                          " and start the job again to begin anew"));
}

absl::Status NotMounted(const std::string& folder, const Place& place, const std::string& run_dir) {
  return absl::UnavailableError(
      absl::StrCat("there is no checkpoint in ", folder, ", but the run of ", run_dir,
                   " has saved some there, on a file system that was mounted at ",
                   place.mount_point, " and is not now: mount it, then start the job again"));
}

}  // namespace

absl::Status NoteCheckpointPlace(Storage* storage, const std::string& run_dir,
                                 const std::string& run, const std::string& folder) {
  LS_ASSIGN_OR_RETURN(const std::string mount_point, storage->MountPoint(folder));
  const json note = json::object({{"schema", 1},
                                  {"folder", Absolute(folder)},
                                  {"real_folder", Real(folder)},
                                  {"mount_point", mount_point},
                                  {"run", run}});
  return WriteFileDurably(absl::StrCat(run_dir, "/", kPlaceName),
                          note.dump(1, ' ', true, json::error_handler_t::replace) + "\n");
}

std::string NotedMountPoint(Storage* storage, const std::string& run_dir, const std::string& run,
                            const std::string& folder) {
  const auto noted = run_dir.empty() ? std::nullopt : PlaceOf(storage, run_dir);
  return noted.has_value() && IsOwn(*noted, run, folder) ? noted->mount_point : "";
}

absl::Status CheckNoneIsLost(Storage* storage, const std::string& run_dir, const std::string& run,
                             const std::string& folder, bool earlier) {
  // A link that leads nowhere is an error here.
  LS_ASSIGN_OR_RETURN(const std::string mounted_at, storage->MountPoint(folder));
  if (run_dir.empty()) return absl::OkStatus();
  const auto noted = PlaceOf(storage, run_dir);
  const bool own = noted.has_value() && IsOwn(*noted, run, folder);
  if (own && noted->mount_point == mounted_at) return Missed(folder, *noted, run_dir);
  if (own) return NotMounted(folder, *noted, run_dir);
  if (!earlier) return absl::OkStatus();
  const auto check = [&](const Place& place, const std::string& of) {
    if (place.mount_point == mounted_at || !IsSameFolder(place, folder)) {
      return absl::OkStatus();
    }
    return Annotate(NotMounted(folder, place, of), "checkpoint.resume: auto");
  };
  // An earlier run may have had this one's folder.
  if (noted.has_value()) LS_RETURN_IF_ERROR(check(*noted, run_dir));
  // The job's other runs lie beside this one: NAME-ID.
  const size_t slash = run_dir.rfind('/'), dash = run_dir.rfind('-');
  if (slash == std::string::npos || dash == std::string::npos || dash < slash) {
    return absl::OkStatus();
  }
  const std::string runs = run_dir.substr(0, slash);
  const std::string name = run_dir.substr(slash + 1, dash - slash);
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> siblings, storage->List(runs));
  // What others put beside it is none of the job's. As its own folder is, since there are file
  // systems that give all files to one user.
  const uid_t own_user = OwnerOf(run_dir).value_or(::geteuid());
  for (const std::string& sibling : siblings) {
    if (!absl::StartsWith(sibling, name)) continue;
    const std::string other = absl::StrCat(runs, "/", sibling);
    if (OwnerOf(other) != own_user) continue;
    const auto place = PlaceOf(storage, other);
    if (place.has_value()) LS_RETURN_IF_ERROR(check(*place, other));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::checkpoint
