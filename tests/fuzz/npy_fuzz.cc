// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "common/check.h"
#include "data/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = lockstep::data::ParseNpy({data, size});
  if (!header.ok()) return 0;
  LS_CHECK_EQ(header->total_bytes(), size);
  size_t elements = 1;
  for (const int64_t extent : header->shape) elements *= static_cast<size_t>(extent);
  LS_CHECK_EQ(elements * lockstep::data::SizeOf(header->type), header->payload_bytes);
  return 0;
}
