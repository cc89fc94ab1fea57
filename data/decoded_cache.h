// SPDX-License-Identifier: Apache-2.0
// One decoded copy of a compressed data file for all processes of a host. The copy lies in
// $XDG_CACHE_HOME/lockstep (or ~/.cache/lockstep) under a name made from the source's path; its
// header holds the source's size and time of change, the length and a checksum, so a stale or
// damaged copy is seen and made anew. Whoever comes first makes it under a file lock, the others
// wait and map it. Before a copy is made those that were not opened for 30 days are removed, and so
// is what killed processes left of them. Thread-safety: thread-safe.
#ifndef LOCKSTEP_DATA_DECODED_CACHE_H_
#define LOCKSTEP_DATA_DECODED_CACHE_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mapped_bytes.h"

namespace lockstep::data {

struct DecodedCopy {
  MappedBytes bytes;
  size_t offset = 0;    // where the decoded bytes begin in `bytes`
  bool shared = false;  // false: private memory of this process
};

// The decoded `bytes` bytes of `source`, of which stat(2) said `info` before it was opened: a copy
// of what replaces it meanwhile is then taken for nobody's. `decode` fills a span of that length;
// it is called when no valid copy is there. A cache that cannot be used (no space, no permission,
// no home) is a warning and private memory, never an error. Blocks while another process decodes
// the same file. Errors: what `decode` returns, annotated with the source's path;
// ResourceExhausted.
absl::StatusOr<DecodedCopy> OpenDecodedCopy(
    const std::string& source, const struct stat& info, size_t bytes,
    absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> decode);

// The file that OpenDecodedCopy uses for `source`; empty when the user has no cache folder.
std::string DecodedCopyPath(const std::string& source);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_DECODED_CACHE_H_
