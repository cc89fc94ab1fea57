// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "data/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* label : {"-1", "0", "label"}) {
    for (const char* header : {"auto", "yes", "no"}) {
      const auto table = lockstep::data::ParseCsv(text, label, header);
      if (!table.ok()) continue;
      LS_CHECK_EQ(table->values.size(),
                  table->labels.size() * static_cast<size_t>(table->features));
    }
  }
  return 0;
}
