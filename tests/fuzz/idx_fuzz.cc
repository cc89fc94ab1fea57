// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::data;  // NOLINT
  const absl::Span<const uint8_t> bytes(data, size);
  const auto plain = ParseIdx(bytes);
  if (plain.ok()) LS_CHECK_EQ(plain->total_bytes(), size);
  if (!IsGzip(bytes)) return 0;
  const auto header = ParseIdxGzHeader(bytes);
  if (!header.ok() || header->total_bytes() > 1 << 22) return 0;
  std::vector<uint8_t> out(header->total_bytes());
  DecodeIdxGz(bytes, *header, absl::MakeSpan(out)).IgnoreError();
  return 0;
}
