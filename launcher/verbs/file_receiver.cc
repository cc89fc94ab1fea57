// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/file_receiver.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/printable.h"
#include "common/status.h"
#include "launcher/agent/run_files.h"

namespace lockstep::launcher {
namespace {

absl::Status CheckName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  const bool good =
      parts.size() <= kMostRunFolders + 1 && std::all_of(parts.begin(), parts.end(), IsRunFileName);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the node names a file '", Printable(name), "', which is none of a run"));
}

}  // namespace

FileReceiver::~FileReceiver() { Drop(); }

std::string FileReceiver::part() const {
  constexpr absl::string_view kEnd = ".part";
  // A name may be as long as a file system takes.
  const size_t begin = name_.rfind('/') + 1;  // 0: there is no folder
  return absl::StrCat(folder_, "/", name_.substr(0, begin + NAME_MAX - kEnd.size()), kEnd);
}

void FileReceiver::Drop() {
  if (name_.empty()) return;
  file_.reset();
  ::unlink(part().c_str());
  name_.clear();
}

absl::Status FileReceiver::Begin(const FilePiece& piece) {
  LS_RETURN_IF_ERROR(CheckName(piece.name()));
  std::error_code error;
  const std::filesystem::path path = std::filesystem::path(folder_) / piece.name();
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make ", path.parent_path().string(), ": ", error.message()));
  }
  name_ = piece.name();
  size_ = piece.size();
  got_ = 0;
  digest_ = name_;
  ::unlink(part().c_str());
  file_.reset(::open(part().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.valid()) return ErrnoStatus(errno, absl::StrCat("cannot write ", part()));
  return absl::OkStatus();
}

absl::Status FileReceiver::Take(const FilePiece& piece) {
  if (name_.empty()) LS_RETURN_IF_ERROR(Begin(piece));
  if (piece.name() != name_ || piece.size() != size_) {
    return absl::DataLossError(absl::StrCat(name_, " broke off; fetch it again"));
  }
  digest_ = PieceDigest(digest_, piece.data());
  got_ += static_cast<int64_t>(piece.data().size());
  if (digest_ != piece.digest() || got_ > size_) {
    return absl::DataLossError(absl::StrCat(name_, " came damaged; fetch it again"));
  }
  size_t written = 0;
  while (written < piece.data().size()) {
    const ssize_t n =
        ::write(file_.get(), piece.data().data() + written, piece.data().size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", part()));
    written += static_cast<size_t>(n);
  }
  if (got_ < size_) return absl::OkStatus();
  file_.reset();
  const std::string to = absl::StrCat(folder_, "/", name_);
  if (::rename(part().c_str(), to.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot write ", to));
  }
  names_.push_back(std::exchange(name_, ""));
  return absl::OkStatus();
}

absl::Status FileReceiver::Finish() {
  if (name_.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(name_, " broke off; fetch it again"));
}

}  // namespace lockstep::launcher
