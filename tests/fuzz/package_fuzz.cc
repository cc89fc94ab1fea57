// SPDX-License-Identifier: Apache-2.0
// Any bytes that call themselves a packed folder (proto/package.proto) are a folder or an error,
// and nothing is made outside it.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/check.h"
#include "coordinator/client/package_store.h"
#include "launcher/package/package.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: a fuzz target is one function
  namespace fs = std::filesystem;
  static const std::string* const base = [] {
    std::string pattern = (fs::temp_directory_path() / "lockstep-fuzz-XXXXXX").string();
    LS_CHECK(::mkdtemp(pattern.data()) != nullptr);
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(*base, ignored);
    });
    return new std::string(pattern);
  }();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string folder = *base + "/in/folder";
  std::error_code ignored;
  fs::create_directories(*base + "/in", ignored);
  launcher::UnpackFolder(bytes, coordinator::PackageId(bytes), folder).IgnoreError();
  // Beside the folder there is nothing, nor above it; links lead nowhere else.
  int found = 0;
  for (const auto& entry : fs::directory_iterator(*base)) {
    LS_CHECK(entry.path().filename() == "in") << entry.path().string();
    ++found;
  }
  LS_CHECK_EQ(found, 1);
  for (const auto& entry : fs::directory_iterator(*base + "/in")) {
    LS_CHECK(entry.path().filename() == "folder") << entry.path().string();
  }
  fs::remove_all(*base + "/in", ignored);
  return 0;
}
