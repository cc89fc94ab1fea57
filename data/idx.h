// SPDX-License-Identifier: Apache-2.0
// The IDX format of the MNIST family: two zero bytes, a type byte (0x08: unsigned bytes, the only
// one read here), the number of dimensions, each dimension as a big-endian 32-bit number, then the
// values. Also inside gzip. Nothing of a file is trusted: sizes are checked before memory is asked
// for. Thread-safety: pure functions; IdxArray is immutable.
#ifndef LOCKSTEP_DATA_IDX_H_
#define LOCKSTEP_DATA_IDX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::data {

struct IdxHeader {
  std::vector<int64_t> dims;  // 1 to 4 dimensions, each at least 1
  size_t header_bytes = 0;
  size_t payload_bytes = 0;
  size_t total_bytes() const { return header_bytes + payload_bytes; }
};

// The longest header that is read: 4 bytes and 4 dimensions.
inline constexpr size_t kMaxIdxHeader = 4 + 4 * 4;

// Reads the header at the beginning of `bytes`, which may be the whole file or its first
// kMaxIdxHeader bytes. Errors: DataLoss (says what is wrong at which offset; the caller adds the
// file's name).
absl::StatusOr<IdxHeader> ParseIdxHeader(absl::Span<const uint8_t> bytes);

// The header of an IDX file and that `bytes` is exactly as long as it says. Errors: DataLoss.
absl::StatusOr<IdxHeader> ParseIdx(absl::Span<const uint8_t> bytes);

// The IDX header inside gzip data, read without decoding more than it. A header that promises more
// than deflate could hold in `gz` (1,032 bytes out of one) is refused. Errors: DataLoss.
absl::StatusOr<IdxHeader> ParseIdxGzHeader(absl::Span<const uint8_t> gz);

// Decodes an IDX file inside gzip into `out`, which has exactly header.total_bytes().
// Errors: DataLoss (damaged, checksum wrong, longer or shorter than its header says).
absl::Status DecodeIdxGz(absl::Span<const uint8_t> gz, const IdxHeader& header,
                         absl::Span<uint8_t> out);

// Returns whether the data begin as gzip does.
bool IsGzip(absl::Span<const uint8_t> bytes);

// For formats that are not read packed. Errors: DataLoss, naming `path`, when `bytes`, with which
// it begins, are the header of gzip (four bytes of it: two alone may be a token).
absl::Status RefuseGzip(const std::string& path, absl::Span<const uint8_t> bytes);

// An IDX file in memory. The values of a large compressed file come from a decoded copy in the
// user's cache folder that all processes of the host share (see decoded_cache.h).
class IdxArray {
 public:
  // Opens and checks `path`, plain or gzip (told by its content, not its name). Blocks for the disk
  // and for another process that decodes the same file. Errors: NotFound, FailedPrecondition
  // (permission), DataLoss, ResourceExhausted; all name the file.
  static absl::StatusOr<std::unique_ptr<IdxArray>> Open(const std::string& path);
  virtual ~IdxArray() = default;

  const std::vector<int64_t>& dims() const { return header_.dims; }
  absl::Span<const uint8_t> values() const { return values_; }
  // Asked after reading values. Errors: as MappedBytes::Check; Unavailable for a decoded copy,
  // which is made again by whoever opens the file next.
  virtual absl::Status Check() const = 0;
  // Where the values begin in the (decoded) file, for messages.
  size_t header_bytes() const { return header_.header_bytes; }

 protected:
  IdxArray(IdxHeader header, const uint8_t* file)
      : header_(std::move(header)), values_(file + header_.header_bytes, header_.payload_bytes) {}

 private:
  IdxHeader header_;
  absl::Span<const uint8_t> values_;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_IDX_H_
