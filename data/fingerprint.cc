// SPDX-License-Identifier: Apache-2.0
#include "data/fingerprint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/hash_bytes.h"
#include "common/mapped_bytes.h"
#include "common/status.h"
#include "data/folder_files.h"
#include "data/image_dataset.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// Of a large file so many pieces are read, from its beginning to its end.
constexpr uint64_t kPieces = 256;
// A folder with more files counts as one.
constexpr size_t kMostFiles = 64;
// Of each of its files so much is read.
constexpr uint64_t kLeastBytes = 64 << 10;

// With or without ".gz", as FindEither in image_dataset.cc.
std::string Either(const std::string& path) {
  const std::string other =
      path.ends_with(".gz") ? path.substr(0, path.size() - 3) : absl::StrCat(path, ".gz");
  const bool there = ::access(path.c_str(), F_OK) == 0;
  return there || ::access(other.c_str(), F_OK) != 0 ? path : other;
}

// Paths that a source names, those of the test split alone with `test`; empty ones and those that
// are not there are left out later.
struct Paths {
  bool test = true;

  std::vector<std::string> operator()(const SyntheticSource&) const { return {}; }
  std::vector<std::string> operator()(const FashionMnistSource& source) const {
    const std::string folder = source.path.empty() ? kFashionMnistFolder : source.path;
    std::vector<std::string> names = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"};
    if (test) names.insert(names.end(), {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"});
    for (std::string& name : names) name = Either(absl::StrCat(folder, "/", name));
    return names;
  }
  std::vector<std::string> operator()(const IdxSource& source) const {
    return {Either(source.train_images), Either(source.train_labels),
            OfTest(Either(source.test_images)), OfTest(Either(source.test_labels))};
  }
  std::vector<std::string> operator()(const TextSource& source) const { return {source.path}; }
  std::vector<std::string> operator()(const TokensSource& source) const {
    return {source.train, OfTest(source.test)};
  }
  std::vector<std::string> operator()(const Cifar10Source& source) const {
    std::vector<std::string> paths = {OfTest(source.path + "/test_batch.bin")};
    for (int i = 1; i <= 5; ++i)
      paths.push_back(absl::StrCat(source.path, "/data_batch_", i, ".bin"));
    return paths;
  }
  std::vector<std::string> operator()(const NpySource& source) const {
    return {source.train_inputs, source.train_labels, OfTest(source.test_inputs),
            OfTest(source.test_labels)};
  }
  std::vector<std::string> operator()(const CsvSource& source) const {
    return {source.train, OfTest(source.test)};
  }

 private:
  std::string OfTest(const std::string& path) const { return test ? path : ""; }
};

// As FingerprintFile, unless the caller gives up.
absl::StatusOr<FileFingerprint> FingerprintNext(const std::string& path, uint64_t whole_bytes,
                                                const FingerprintOptions& options) {
  if (options.go_on != nullptr && !options.go_on()) return absl::CancelledError("given up");
  return FingerprintFile(path, whole_bytes);
}

// What the file system says of the file.
std::string StampOf(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return absl::StrCat(path, " not there\n");
  return absl::StrCat(path, " ", found.st_ino, " ", found.st_size, " ", found.st_mtim.tv_sec, ".",
                      found.st_mtim.tv_nsec, " ", found.st_ctim.tv_sec, ".", found.st_ctim.tv_nsec,
                      "\n");
}

// The folder's files in the order of their names, then the folder itself.
absl::StatusOr<std::vector<FileFingerprint>> FingerprintFolder(const std::string& folder,
                                                               const FingerprintOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesOfFolder(folder));
  std::vector<FileFingerprint> files;
  std::string names;
  const uint64_t share = options.folder_bytes / std::max<size_t>(1, paths.size());
  const uint64_t each = std::clamp(share, kLeastBytes, kWholeBytes);
  for (const std::string& path : paths) {
    LS_ASSIGN_OR_RETURN(FileFingerprint file, FingerprintNext(path, each, options));
    absl::StrAppend(&names, path, "\n");
    files.push_back(std::move(file));
  }
  if (files.size() > kMostFiles) {
    for (const FileFingerprint& file : files) absl::StrAppend(&names, file.hash, "\n");
    files.clear();
  }
  files.push_back({folder, paths.size(), HashBytes(names.data(), names.size()), /*folder=*/true});
  return files;
}

}  // namespace

absl::StatusOr<FileFingerprint> FingerprintFile(const std::string& path, uint64_t whole_bytes) {
  std::error_code error;
  if (fs::file_size(path, error) == 0 && !error) return FileFingerprint{path, 0, 0};
  LS_ASSIGN_OR_RETURN(const MappedBytes file, MappedBytes::OpenFile(path));
  FileFingerprint print{path, file.size(), 0};
  if (file.size() <= whole_bytes) {
    print.hash = HashBytes(file.data(), file.size());
  } else {
    const uint64_t piece = std::max<uint64_t>(1, whole_bytes / kPieces);
    std::vector<uint64_t> hashes;
    for (uint64_t i = 0; i < kPieces; ++i) {
      // In steps of the file's size, without a product that overflows.
      const uint64_t at = (file.size() - piece) / (kPieces - 1) * i;
      hashes.push_back(HashBytes(file.data() + at, piece));
    }
    hashes.push_back(HashBytes(file.data() + file.size() - piece, piece));
    print.hash = HashBytes(hashes.data(), hashes.size() * sizeof(uint64_t));
  }
  LS_RETURN_IF_ERROR(file.Check());
  return print;
}

absl::StatusOr<std::vector<FileFingerprint>> FingerprintFiles(const Source& source,
                                                              const FingerprintOptions& options) {
  std::vector<FileFingerprint> all;
  for (const std::string& path : std::visit(Paths{options.test}, source)) {
    std::error_code error;
    if (path.empty() || !fs::exists(path, error)) continue;
    if (fs::is_directory(path, error)) {
      LS_ASSIGN_OR_RETURN(const std::vector<FileFingerprint> files,
                          FingerprintFolder(path, options));
      all.insert(all.end(), files.begin(), files.end());
    } else {
      LS_ASSIGN_OR_RETURN(FileFingerprint file, FingerprintNext(path, kWholeBytes, options));
      all.push_back(std::move(file));
    }
  }
  return all;
}

uint64_t StampFiles(const Source& source, bool test) {
  std::string stamps;
  for (const std::string& path : std::visit(Paths{test}, source)) {
    std::error_code error;
    if (path.empty()) continue;
    if (!fs::is_directory(path, error)) {
      absl::StrAppend(&stamps, StampOf(path));
      continue;
    }
    const absl::StatusOr<std::vector<std::string>> files = FilesOfFolder(path);
    if (!files.ok()) continue;  // who opens it says so
    for (const std::string& file : *files) absl::StrAppend(&stamps, StampOf(file));
  }
  return HashBytes(stamps.data(), stamps.size());
}

bool IsFileOf(const Source& source, const std::string& path) {
  std::error_code not_there;
  for (const std::string& named : std::visit(Paths{.test = true}, source)) {
    std::vector<std::string> files = {named};
    if (fs::is_directory(named, not_there)) files = FilesOfFolder(named).value_or(files);
    for (const std::string& file : files) {
      if (fs::equivalent(file, path, not_there)) return true;
    }
  }
  return false;
}

}  // namespace lockstep::data
