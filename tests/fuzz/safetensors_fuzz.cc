// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <string_view>

#include "checkpoint/safetensors_header.h"
#include "common/check.h"

// The first two bytes are the number of data bytes; the rest is the header.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::checkpoint;  // NOLINT
  if (size < 2) return 0;
  const uint64_t bytes = data[0] | data[1] << 8;
  const auto header = ParseSafetensorsHeader(
      std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2), bytes);
  if (!header.ok()) return 0;
  // What was read is written and read again as the same.
  const auto text = FormatSafetensorsHeader(*header);
  LS_CHECK(text.ok()) << text.status().message();
  const auto again = ParseSafetensorsHeader(*text, bytes);
  LS_CHECK(again.ok()) << again.status().message();
  LS_CHECK(again->metadata == header->metadata);
  LS_CHECK_EQ(again->tensors.size(), header->tensors.size());
  return 0;
}
