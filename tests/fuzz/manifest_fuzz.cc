// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string_view>

#include "checkpoint/manifest.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::checkpoint;  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(ParseFileRecords(text));
  const auto manifest = ParseManifest(text);
  if (!manifest.ok()) return 0;
  // What was read is written and read again as the same.
  const auto again = ParseManifest(FormatManifest(*manifest));
  LS_CHECK(again.ok()) << again.status().message();
  LS_CHECK_EQ(again->step, manifest->step);
  LS_CHECK(again->train == manifest->train);
  LS_CHECK(again->files == manifest->files);
  return 0;
}
