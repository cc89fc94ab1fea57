// SPDX-License-Identifier: Apache-2.0
#include "data/idx.h"

#include <libdeflate.h>
#include <zlib.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mapped_bytes.h"
#include "common/status.h"
#include "data/decoded_cache.h"

namespace lockstep::data {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr int kMaxDims = 4;
// A deflate match of 258 bytes takes at least 2 bits.
constexpr size_t kMaxDeflateRatio = 1032;
// Smaller files are decoded by each process: a cached copy would cost more than it saves.
constexpr size_t kCacheFrom = 1 << 20;

uint32_t BigEndian32(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

class MappedIdx : public IdxArray {
 public:
  MappedIdx(IdxHeader header, MappedBytes bytes, size_t offset)
      : IdxArray(std::move(header), bytes.data() + offset), bytes_(std::move(bytes)) {}
  absl::Status Check() const override { return bytes_.Check(); }

 private:
  const MappedBytes bytes_;
};

class DecodedIdx : public IdxArray {
 public:
  DecodedIdx(IdxHeader header, DecodedCopy copy)
      : IdxArray(std::move(header), copy.bytes.data() + copy.offset), copy_(std::move(copy)) {}
  absl::Status Check() const override {
    absl::Status good = copy_.bytes.Check();
    if (good.ok()) return good;
    return absl::UnavailableError(
        absl::StrCat(good.message(), "; this decoded copy is made again at the next start"));
  }

 private:
  const DecodedCopy copy_;
};

// Decodes one gzip member after the other; most files have one.
absl::Status DecodeMembers(libdeflate_decompressor* decompressor, absl::Span<const uint8_t> gz,
                           absl::Span<uint8_t> out) {
  size_t in_at = 0, out_at = 0;
  while (in_at < gz.size()) {
    size_t in_used = 0, out_used = 0;
    const libdeflate_result result = libdeflate_gzip_decompress_ex(
        decompressor, gz.data() + in_at, gz.size() - in_at, out.data() + out_at,
        out.size() - out_at, &in_used, &out_used);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {
      return absl::DataLossError(
          absl::StrCat("decodes to more than the ", out.size(), " bytes that its header says"));
    }
    if (result != LIBDEFLATE_SUCCESS) {
      return absl::DataLossError(
          absl::StrCat("damaged gzip data (or a wrong checksum) in the member at offset ", in_at));
    }
    in_at += in_used;
    out_at += out_used;
  }
  if (out_at != out.size()) {
    return absl::DataLossError(
        absl::StrCat("decodes to ", out_at, " bytes, but its header says ", out.size()));
  }
  return absl::OkStatus();
}

// Returns whether the file is the one, in the state, of which stat(2) said `info`.
bool IsStill(const std::string& path, const struct stat& info) {
  struct stat now {};
  return ::stat(path.c_str(), &now) == 0 && now.st_dev == info.st_dev &&
         now.st_ino == info.st_ino && now.st_size == info.st_size &&
         now.st_mtim.tv_sec == info.st_mtim.tv_sec && now.st_mtim.tv_nsec == info.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<IdxHeader> ParseIdxHeader(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < 4) {
    return absl::DataLossError(
        absl::StrCat("truncated at offset ", bytes.size(), ": an IDX file begins with 4 bytes"));
  }
  if (bytes[0] != 0 || bytes[1] != 0) {
    return absl::DataLossError("not an IDX file: the bytes at offset 0 and 1 must be zero");
  }
  if (bytes[2] != kUnsignedByte) {
    return absl::DataLossError(absl::StrCat("value type 0x", absl::Hex(bytes[2], absl::kZeroPad2),
                                            " at offset 2; only 0x08 (unsigned bytes) is read"));
  }
  const int dims = bytes[3];
  if (dims < 1 || dims > kMaxDims) {
    return absl::DataLossError(
        absl::StrCat(dims, " dimensions at offset 3; 1 to ", kMaxDims, " are read"));
  }
  IdxHeader header;
  header.header_bytes = 4 + 4 * static_cast<size_t>(dims);
  if (bytes.size() < header.header_bytes) {
    return absl::DataLossError(absl::StrCat("truncated at offset ", bytes.size(),
                                            ": the header has ", header.header_bytes, " bytes"));
  }
  header.payload_bytes = 1;
  for (int i = 0; i < dims; ++i) {
    const size_t at = 4 + 4 * static_cast<size_t>(i);
    const uint32_t dim = BigEndian32(&bytes[at]);
    if (dim == 0) return absl::DataLossError(absl::StrCat("dimension 0 at offset ", at));
    if (header.payload_bytes > (size_t{1} << 46) / dim) {
      return absl::DataLossError(
          absl::StrCat("the dimensions up to offset ", at + 4, " promise more than 64 TiB"));
    }
    header.payload_bytes *= dim;
    header.dims.push_back(dim);
  }
  return header;
}

absl::StatusOr<IdxHeader> ParseIdx(absl::Span<const uint8_t> bytes) {
  LS_ASSIGN_OR_RETURN(IdxHeader header, ParseIdxHeader(bytes));
  if (bytes.size() != header.total_bytes()) {
    return absl::DataLossError(
        absl::StrCat("has ", bytes.size(), " bytes, but its header says ", header.total_bytes()));
  }
  return header;
}

bool IsGzip(absl::Span<const uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
}

absl::Status RefuseGzip(const std::string& path, absl::Span<const uint8_t> bytes) {
  constexpr uint8_t kDeflate = 8, kReservedFlags = 0xE0;
  if (!IsGzip(bytes) || bytes.size() < 4 || bytes[2] != kDeflate ||
      (bytes[3] & kReservedFlags) != 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(path, " is packed by gzip: unpack it (of packed files IDX alone is read)"));
}

absl::StatusOr<IdxHeader> ParseIdxGzHeader(absl::Span<const uint8_t> gz) {
  uint8_t prefix[kMaxIdxHeader];
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return absl::ResourceExhaustedError("inflateInit2");
  // zlib only looks at the beginning; a first 64 KiB holds any gzip header with its name and
  // comment.
  stream.next_in = const_cast<Bytef*>(gz.data());
  stream.avail_in = static_cast<uInt>(gz.size() < (64 << 10) ? gz.size() : 64 << 10);
  stream.next_out = prefix;
  stream.avail_out = sizeof(prefix);
  const int result = inflate(&stream, Z_SYNC_FLUSH);
  const size_t decoded = sizeof(prefix) - stream.avail_out;
  inflateEnd(&stream);
  if (result == Z_DATA_ERROR || result == Z_NEED_DICT || result == Z_STREAM_ERROR) {
    return absl::DataLossError("damaged gzip data at its beginning");
  }
  if (result == Z_MEM_ERROR) return absl::ResourceExhaustedError("inflate: out of memory");
  LS_ASSIGN_OR_RETURN(IdxHeader header, ParseIdxHeader(absl::MakeConstSpan(prefix, decoded)));
  if (header.total_bytes() / kMaxDeflateRatio > gz.size()) {
    return absl::DataLossError(absl::StrCat("its header promises ", header.total_bytes(),
                                            " bytes, more than ", gz.size(),
                                            " bytes of gzip can hold"));
  }
  return header;
}

absl::Status DecodeIdxGz(absl::Span<const uint8_t> gz, const IdxHeader& header,
                         absl::Span<uint8_t> out) {
  const std::unique_ptr<libdeflate_decompressor, void (*)(libdeflate_decompressor*)> decompressor(
      libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  if (decompressor == nullptr) return absl::ResourceExhaustedError("gzip decoder: out of memory");
  LS_RETURN_IF_ERROR(DecodeMembers(decompressor.get(), gz, out));
  // What was decoded must begin with the header that its size was taken from.
  LS_ASSIGN_OR_RETURN(const IdxHeader again, ParseIdx(out));
  if (again.dims != header.dims) return absl::DataLossError("its header reads differently twice");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IdxArray>> IdxArray::Open(const std::string& path) {
  struct stat info {};
  ::stat(path.c_str(), &info);  // where it fails, so does the line below
  LS_ASSIGN_OR_RETURN(MappedBytes file, MappedBytes::OpenFile(path));
  if (!IsGzip(file.span())) {
    absl::StatusOr<IdxHeader> header = ParseIdx(file.span());
    LS_RETURN_IF_ERROR(file.Check());
    if (!header.ok()) return Annotate(header.status(), path);
    return std::make_unique<MappedIdx>(*std::move(header), std::move(file), 0);
  }
  const auto header = ParseIdxGzHeader(file.span());
  LS_RETURN_IF_ERROR(file.Check());
  if (!header.ok()) return Annotate(header.status(), path);
  const size_t bytes = header->total_bytes();
  const auto decode = [&](absl::Span<uint8_t> out) {
    absl::Status decoded = DecodeIdxGz(file.span(), *header, out);
    absl::Status read = file.Check();
    return read.ok() ? decoded : read;
  };
  // One that was replaced meanwhile shares no copy: it may be the other one that was opened.
  if (bytes >= kCacheFrom && IsStill(path, info)) {
    LS_ASSIGN_OR_RETURN(DecodedCopy copy, OpenDecodedCopy(path, info, bytes, decode));
    return std::make_unique<DecodedIdx>(*header, std::move(copy));
  }
  LS_ASSIGN_OR_RETURN(MappedBytes memory, MappedBytes::Anonymous(bytes));
  if (absl::Status status = decode(memory.writable()); !status.ok()) return Annotate(status, path);
  return std::make_unique<MappedIdx>(*header, std::move(memory), 0);
}

}  // namespace lockstep::data
