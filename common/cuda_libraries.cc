// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_libraries.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

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

// Returns the user's home whose libraries may be loaded; empty: there is none.
std::string TrustedHome() {
  const char* const home = std::getenv("HOME");
  if (home == nullptr) return "";
  struct stat status;
  if (::geteuid() == 0 && (::stat(home, &status) != 0 || status.st_uid != 0)) return "";
  return home;
}

// The environments of Python that are active, or whose interpreter is the first on the path. They
// need not be activated: /opt/env/bin/python3 on the path is enough.
std::vector<std::string> PythonPrefixes() {
  std::vector<std::string> prefixes;
  const auto add = [&](absl::string_view prefix) {
    const bool known = std::find(prefixes.begin(), prefixes.end(), prefix) != prefixes.end();
    if (!prefix.empty() && !known) prefixes.emplace_back(prefix);
  };
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* environment = std::getenv(variable)) add(environment);
  }
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string program = absl::StrCat(folder, "/python3");
    if (folder.empty() || ::access(program.c_str(), X_OK) != 0) continue;
    // A virtual environment's program is a link to that of another prefix.
    add(absl::StripSuffix(absl::StripSuffix(folder, "/"), "/bin"));
    if (char* const real = ::realpath(program.c_str(), nullptr)) {
      const absl::string_view target = real;
      add(absl::StripSuffix(target.substr(0, target.rfind('/')), "/bin"));
      std::free(real);
    }
    break;
  }
  return prefixes;
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
  for (const std::string& prefix : PythonPrefixes()) {
    AppendMatches(absl::StrCat(prefix, "/lib/python3*/site-packages", packed), &paths);
  }
  if (const std::string home = TrustedHome(); !home.empty()) {
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
