// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file: written and strictly read.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_CHECKPOINT_SAFETENSORS_HEADER_H_
#define LOCKSTEP_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::checkpoint {

struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, from the end of the header
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Headers longer than this are refused, as the format's reference reader does.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// shape's elements x the dtype's bytes. Errors: InvalidArgument (unknown dtype, negative,
// overflow).
absl::StatusOr<uint64_t> TensorBytes(std::string_view dtype, const std::vector<int64_t>& shape);

// The header's text, padded with spaces so that 8 + its length is a multiple of 8: metadata first
// (when there is any) with sorted keys, then the tensors in the given order. Errors:
// InvalidArgument (text that is not UTF-8).
absl::StatusOr<std::string> FormatSafetensorsHeader(const SafetensorsHeader& header);

// Reads a header and checks it against the `data_bytes` after it: every range has the size that its
// dtype and shape say, ranges follow each other without hole or overlap and end with the data;
// names occur once; nothing unknown. Tensors come in the order of their data. Errors: DataLoss
// (says what is wrong with which tensor or at which byte).
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t data_bytes);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_SAFETENSORS_HEADER_H_
