// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "common/check.h"
#include "data/cifar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto labels = lockstep::data::ParseCifar({data, size});
  if (labels.ok()) LS_CHECK_EQ(labels->size() * lockstep::data::kCifarRecord, size);
  return 0;
}
