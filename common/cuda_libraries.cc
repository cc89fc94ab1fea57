// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_libraries.h"

#include <glob.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace {

// The files that `pattern` names, in the order of their names.
void AppendMatches(const std::string& pattern, std::vector<std::string>* paths) {
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) paths->emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
}

}  // namespace

std::vector<std::string> CudaLibraryPaths(const char* variable, const std::string& file,
                                          const std::string& wheel) {
  if (const char* given = std::getenv(variable)) {
    return *given == '\0' ? std::vector<std::string>{} : std::vector<std::string>{given};
  }
  std::vector<std::string> paths = {file};
  if (const char* folders = std::getenv("LOCKSTEP_CUDA_LIBRARIES")) {
    for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) {
      paths.push_back(absl::StrCat(folder, "/", file));
    }
  }
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/lib"}) {
    paths.push_back(absl::StrCat(folder, "/", file));
  }
  const std::string packed = absl::StrCat("/nvidia/", wheel, "/lib/", file);
  if (const char* environment = std::getenv("VIRTUAL_ENV")) {
    AppendMatches(absl::StrCat(environment, "/lib/python3*/site-packages", packed), &paths);
  }
  if (const char* home = std::getenv("HOME")) {
    AppendMatches(absl::StrCat(home, "/.local/lib/python3*/site-packages", packed), &paths);
  }
  for (const char* folder :
       {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
        "/usr/lib/python3*/site-packages", "/usr/lib/python3/dist-packages"}) {
    AppendMatches(absl::StrCat(folder, packed), &paths);
  }
  return paths;
}

}  // namespace lockstep
