// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/sha256.h"
#include "common/check.h"
#include "common/durable_file.h"
#include "common/half.h"
#include "common/status.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr size_t kLengthBytes = 8;
// Written and hashed in pieces that stay in the cache between the two.
constexpr size_t kPiece = 256 << 10;

absl::StatusOr<SafetensorsHeader> MakeHeader(const std::vector<TensorView>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t at = 0;
  std::set<std::string> names{"__metadata__"};
  for (const TensorView& tensor : tensors) {
    const std::string where = absl::StrCat("tensor '", tensor.name, "'");
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return Annotate(bytes.status(), where);
    if (*bytes != tensor.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has ", tensor.bytes, " bytes, its shape and dtype say ", *bytes));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": the name is taken"));
    }
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, at, at + *bytes});
    at += *bytes;
  }
  return header;
}

// Gives the bytes to the sink and to the hash.
absl::Status Append(const void* data, size_t bytes, const ByteSink& sink, Sha256* hash) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t piece = bytes < kPiece ? bytes : kPiece;
    hash->Update(next, piece);
    LS_RETURN_IF_ERROR(sink(next, piece));
    next += piece;
    bytes -= piece;
  }
  return absl::OkStatus();
}

// Widens 16-bit numbers piece by piece; fp32 has each of them.
template <typename Half>
absl::Status AppendWidened(const TensorView& tensor, const ByteSink& sink, Sha256* hash) {
  std::vector<float> piece(kPiece / sizeof(float));
  const char* next = static_cast<const char*>(tensor.data);
  for (size_t left = tensor.bytes / sizeof(float); left > 0;) {
    const size_t count = std::min(left, piece.size());
    for (size_t i = 0; i < count; ++i, next += sizeof(Half)) {
      Half half;
      std::memcpy(&half, next, sizeof(half));
      piece[i] = half.ToFloat();
    }
    LS_RETURN_IF_ERROR(Append(piece.data(), count * sizeof(float), sink, hash));
    left -= count;
  }
  return absl::OkStatus();
}

absl::Status AppendTensor(const TensorView& tensor, const ByteSink& sink, Sha256* hash) {
  if (tensor.stored.empty()) return Append(tensor.data, tensor.bytes, sink, hash);
  LS_CHECK_EQ(tensor.dtype, "F32") << tensor.name;
  if (tensor.stored == "BF16") return AppendWidened<BFloat16>(tensor, sink, hash);
  LS_CHECK_EQ(tensor.stored, "F16") << tensor.name;
  return AppendWidened<Float16>(tensor, sink, hash);
}

}  // namespace

absl::StatusOr<StreamedFile> StreamSafetensors(const std::vector<TensorView>& tensors,
                                               const std::map<std::string, std::string>& metadata,
                                               const ByteSink& sink) {
  LS_ASSIGN_OR_RETURN(const SafetensorsHeader header, MakeHeader(tensors, metadata));
  LS_ASSIGN_OR_RETURN(const std::string text, FormatSafetensorsHeader(header));
  if (text.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a header of ", text.size(), " bytes; readers take 100,000,000"));
  }
  Sha256 hash;
  const uint64_t length = text.size();
  StreamedFile streamed;
  streamed.bytes = kLengthBytes + length;
  LS_RETURN_IF_ERROR(Append(&length, kLengthBytes, sink, &hash));
  LS_RETURN_IF_ERROR(Append(text.data(), text.size(), sink, &hash));
  for (const TensorView& tensor : tensors) {
    LS_RETURN_IF_ERROR(AppendTensor(tensor, sink, &hash));
    streamed.bytes += tensor.bytes;
  }
  streamed.sha256 = hash.FinishHex();
  return streamed;
}

absl::StatusOr<std::string> WriteSafetensors(const std::string& path,
                                             const std::vector<TensorView>& tensors,
                                             const std::map<std::string, std::string>& metadata,
                                             const std::function<bool()>& go_on) {
  LS_RETURN_IF_ERROR(MakeHeader(tensors, metadata).status());  // before the path is touched
  LS_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  auto streamed = StreamSafetensors(tensors, metadata, [&](const void* data, size_t bytes) {
    if (go_on != nullptr && !go_on()) return absl::CancelledError("given up");
    return file.Append(data, bytes);
  });
  if (absl::IsInvalidArgument(streamed.status())) return Annotate(streamed.status(), path);
  LS_RETURN_IF_ERROR(streamed.status());
  LS_RETURN_IF_ERROR(file.Commit());
  return streamed->sha256;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path,
                                                                       Storage* storage) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  LS_ASSIGN_OR_RETURN(file->file_, storage->Open(path));
  const uint64_t size = file->file_->size();
  if (size < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(path, ": truncated, ", size, " bytes"));
  }
  uint64_t length;
  LS_RETURN_IF_ERROR(file->file_->ReadAt(0, &length, kLengthBytes));
  if (length > kMaxHeaderBytes || length > size - kLengthBytes) {
    return absl::DataLossError(absl::StrCat(path,
                                            " is cut short or no safetensors file: a header of ",
                                            length, " bytes in a file of ", size));
  }
  std::string text(length, '\0');
  LS_RETURN_IF_ERROR(file->file_->ReadAt(kLengthBytes, text.data(), length));
  file->data_ = kLengthBytes + length;
  auto header = ParseSafetensorsHeader(text, size - file->data_);
  if (!header.ok()) return Annotate(header.status(), path);
  file->tensors_ = std::move(header->tensors);
  file->metadata_ = std::move(header->metadata);
  return file;
}

const TensorEntry* SafetensorsFile::Find(const std::string& name) const {
  for (const TensorEntry& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status SafetensorsFile::Read(const TensorEntry& tensor, uint64_t at, void* to,
                                   size_t bytes) const {
  LS_CHECK(at <= tensor.bytes() && bytes <= tensor.bytes() - at) << tensor.name;
  return file_->ReadAt(data_ + tensor.begin + at, to, bytes);
}

}  // namespace lockstep::checkpoint
