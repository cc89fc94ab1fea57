// SPDX-License-Identifier: Apache-2.0
#include "data/folder_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// A file as the file system knows it, whatever its names are.
using FileId = std::pair<dev_t, ino_t>;
FileId IdOf(const struct stat& info) { return {info.st_dev, info.st_ino}; }

// Adds to `names` those of `links` that lead to files which are not among them.
absl::Status AddLinks(std::vector<std::string> links, std::vector<std::string>* names) {
  std::set<FileId> there;
  struct stat info {};
  for (const std::string& name : *names) {
    if (::stat(name.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", name));
    there.insert(IdOf(info));
  }
  std::sort(links.begin(), links.end());
  for (std::string& link : links) {
    if (::stat(link.c_str(), &info) != 0) {
      if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) {
        return ErrnoStatus(errno, absl::StrCat("stat ", link));
      }
      // Editors lock a file that they change by such a link, to nowhere.
      if (fs::path(link).filename().string().starts_with(".#")) continue;
      return absl::NotFoundError(absl::StrCat(
          link, " is a link that leads to no file: remove it, or bring its file here"));
    }
    if (S_ISREG(info.st_mode) && there.insert(IdOf(info)).second) names->push_back(std::move(link));
  }
  return absl::OkStatus();
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
  if (!links.empty()) LS_RETURN_IF_ERROR(AddLinks(std::move(links), &names));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::data
