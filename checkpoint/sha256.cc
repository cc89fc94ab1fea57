// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sha256.h"

#include <algorithm>
#include <vector>

#include "common/status.h"

namespace lockstep::checkpoint {

absl::StatusOr<HashedFile> HashFile(Storage* storage, const std::string& path,
                                    const std::function<bool()>& go_on) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Storage::Source> file, storage->Open(path));
  Sha256 hash;
  HashedFile hashed;
  std::vector<char> buffer(256 << 10);
  while (hashed.bytes < file->size()) {
    if (go_on != nullptr && !go_on()) return absl::CancelledError("given up");
    const size_t piece = std::min<uint64_t>(buffer.size(), file->size() - hashed.bytes);
    LS_RETURN_IF_ERROR(file->ReadAt(hashed.bytes, buffer.data(), piece));
    hash.Update(buffer.data(), piece);
    hashed.bytes += piece;
  }
  hashed.sha256 = hash.FinishHex();
  return hashed;
}

FileMatch MatchFile(Storage* storage, const std::string& path, const std::string& sha256,
                    const std::function<bool()>& go_on) {
  const absl::StatusOr<HashedFile> hashed = HashFile(storage, path, go_on);
  if (hashed.ok()) return hashed->sha256 == sha256 ? FileMatch::kSame : FileMatch::kOther;
  const bool other = absl::IsNotFound(hashed.status()) || absl::IsDataLoss(hashed.status());
  return other ? FileMatch::kOther : FileMatch::kUnknown;
}

}  // namespace lockstep::checkpoint
