// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy format, versions 1 to 3: the magic "\x93NUMPY", two version bytes, the header's
// length, the header (a Python dictionary with descr, fortran_order and shape), then the values.
// Read are little-endian fp32, fp64, uint8, int32 and int64 in C order. Nothing of a file is
// trusted. Thread-safety: pure functions; NpyArray is immutable.
#ifndef LOCKSTEP_DATA_NPY_H_
#define LOCKSTEP_DATA_NPY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mapped_bytes.h"

namespace lockstep::data {

enum class NpyType { kFloat32, kFloat64, kUInt8, kInt32, kInt64 };
// Bytes of one element.
size_t SizeOf(NpyType type);
// As numpy names it: "float32".
const char* Name(NpyType type);

struct NpyHeader {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;  // at most 8 extents; {} is one value; an extent may be 0
  size_t header_bytes = 0;
  size_t payload_bytes = 0;
  size_t total_bytes() const { return header_bytes + payload_bytes; }
};

// The header of a .npy file, and that `bytes` is exactly as long as it says.
// Errors: DataLoss (says what is wrong; the caller adds the file's name).
absl::StatusOr<NpyHeader> ParseNpy(absl::Span<const uint8_t> bytes);

// The bytes before the values of an array (version 1, padded to a multiple of 64 bytes).
std::string FormatNpyHeader(NpyType type, const std::vector<int64_t>& shape);

// A .npy file in memory (mapped).
class NpyArray {
 public:
  // Errors: NotFound, FailedPrecondition (permission), DataLoss; they name the file.
  static absl::StatusOr<std::unique_ptr<NpyArray>> Open(const std::string& path);

  NpyType type() const { return header_.type; }
  const std::vector<int64_t>& shape() const { return header_.shape; }
  // The values in C order; may be unaligned.
  const uint8_t* values() const { return file_.data() + header_.header_bytes; }
  // Asked after reading values. Errors: as MappedBytes::Check.
  absl::Status Check() const { return file_.Check(); }

 private:
  NpyArray(NpyHeader header, MappedBytes file)
      : header_(std::move(header)), file_(std::move(file)) {}
  const NpyHeader header_;
  const MappedBytes file_;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_NPY_H_
