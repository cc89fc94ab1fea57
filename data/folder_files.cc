// SPDX-License-Identifier: Apache-2.0
#include "data/folder_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// A file as the file system knows it, whatever its names are.
using FileId = std::pair<dev_t, ino_t>;
FileId IdOf(const struct stat& info) { return {info.st_dev, info.st_ino}; }

// Returns whether the file at `path` is there; then `info` is what the file system says of it.
absl::StatusOr<bool> Look(const std::string& path, struct stat* info) {
  if (::stat(path.c_str(), info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
  return ErrnoStatus(errno, absl::StrCat("stat ", path));
}

// Returns each file of `names` and `links`, both sorted, once: under the first of its names, else
// under the first link that leads to it.
absl::StatusOr<std::vector<std::string>> EachOnce(std::vector<std::string> names,
                                                  std::vector<std::string> links) {
  std::vector<std::string> files;
  std::set<FileId> there;
  struct stat info {};
  for (std::string& name : names) {
    LS_ASSIGN_OR_RETURN(const bool found, Look(name, &info));
    if (!found) continue;  // it has gone meanwhile
    // One with a single name is no other's, though file systems may give two of them the same id.
    const bool first = there.insert(IdOf(info)).second;
    if (first || info.st_nlink <= 1) files.push_back(std::move(name));
  }
  for (std::string& link : links) {
    LS_ASSIGN_OR_RETURN(const bool found, Look(link, &info));
    if (!found) {
      // Editors lock a file that they change by such a link, to nowhere.
      if (fs::path(link).filename().string().starts_with(".#")) continue;
      return absl::NotFoundError(absl::StrCat(
          link, " is a link that leads to no file: remove it, or bring its file here"));
    }
    if (S_ISREG(info.st_mode) && there.insert(IdOf(info)).second) files.push_back(std::move(link));
  }
  return files;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder) {
  std::vector<std::string> names, links;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const bool link = it->is_symlink(error);
    const bool file = !link && !error && it->is_regular_file(error);
    // Not every file system says it with the name. Who is gone meanwhile is no file; of others that
    // has to be known, and the increment forgets the error.
    if (error && error != std::errc::no_such_file_or_directory) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the folder ", folder, " cannot be read: ", it->path().string(), ": ", error.message()));
    }
    if (link) links.push_back(it->path().string());
    if (file) names.push_back(it->path().string());
  }
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder ", folder, " cannot be read: ", error.message()));
  }
  std::sort(names.begin(), names.end());
  std::sort(links.begin(), links.end());
  LS_ASSIGN_OR_RETURN(std::vector<std::string> files, EachOnce(std::move(names), std::move(links)));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace lockstep::data
