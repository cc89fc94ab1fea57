// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/package_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/durable_file.h"
#include "common/fd.h"
#include "common/hmac.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "package:";
constexpr size_t kDigits = 64;

bool IsId(absl::string_view id) {
  return id.size() == kDigits && std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

struct Item {
  int64_t used = 0;
  std::string id;
  int64_t bytes = 0;
  bool operator<(const Item& other) const { return used < other.used; }
};

std::vector<Item> ItemsIn(const std::string& folder) {
  std::vector<Item> items;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    struct stat status;
    const std::string name = entry.path().filename();
    if (!IsId(name) || ::stat(entry.path().c_str(), &status) != 0) continue;
    items.push_back({int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec, name,
                     status.st_size});
  }
  return items;
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  std::string bytes;
  char buffer[256 << 10];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(bytes.size()) > kMostPackedBytes) return absl::DataLossError(path);
  }
}

}  // namespace

std::string PackageId(std::string_view bytes) {
  return absl::BytesToHexString(HmacSha256("lockstep package 1", bytes));
}

std::string PackageWorkdir(const std::string& id) { return absl::StrCat(kPrefix, id); }

std::string PackageOf(absl::string_view workdir) {
  return absl::ConsumePrefix(&workdir, kPrefix) && IsId(workdir) ? std::string(workdir) : "";
}

std::string PackageStore::PathOf(const std::string& id) const {
  return absl::StrCat(settings_.folder, "/", id);
}

bool PackageStore::Has(const std::string& id) {
  if (!IsId(id)) return false;
  absl::MutexLock lock(&mu_);
  if (!settings_.folder.empty()) {
    return ::utimensat(AT_FDCWD, PathOf(id).c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
  }
  const auto found = kept_.find(id);
  if (found == kept_.end()) return false;
  found->second.used = ++uses_;
  return true;
}

absl::Status PackageStore::MakeRoom(int64_t bytes) {
  std::vector<Item> items;
  if (settings_.folder.empty()) {
    for (const auto& [id, kept] : kept_) {
      items.push_back({kept.used, id, static_cast<int64_t>(kept.bytes.size())});
    }
  } else {
    items = ItemsIn(settings_.folder);
  }
  int64_t all = bytes;
  for (const Item& item : items) all += item.bytes;
  if (all <= settings_.most_bytes) return absl::OkStatus();
  const std::set<std::string> in_use =
      settings_.in_use == nullptr ? std::set<std::string>() : settings_.in_use();
  std::sort(items.begin(), items.end());
  for (const Item& item : items) {
    if (in_use.contains(item.id)) continue;
    if (settings_.folder.empty()) {
      kept_.erase(item.id);
    } else if (::unlink(PathOf(item.id).c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus(errno, PathOf(item.id));
    }
    all -= item.bytes;
    if (all <= settings_.most_bytes) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("there is no room for another job's workdir: those that jobs still need have ",
                   all - bytes, " of ", settings_.most_bytes, " bytes"));
}

absl::Status PackageStore::Put(const std::string& id, const std::string& bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMostPackedBytes || PackageId(bytes) != id) {
    return absl::InvalidArgumentError("a package's bytes are not those of its name, or too many");
  }
  if (Has(id)) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  LS_RETURN_IF_ERROR(MakeRoom(static_cast<int64_t>(bytes.size())));
  if (settings_.folder.empty()) {
    kept_[id] = {bytes, ++uses_};
    return absl::OkStatus();
  }
  // It may hold what is its owner's affair.
  LS_RETURN_IF_ERROR(CreateFolders(settings_.folder));
  ::chmod(settings_.folder.c_str(), 0700);
  return WriteFileDurably(PathOf(id), bytes);
}

absl::StatusOr<std::string> PackageStore::Get(const std::string& id) {
  const absl::Status none =
      absl::NotFoundError(absl::StrCat("there is no package ", id, ": submit the job again"));
  if (!Has(id)) return none;
  absl::MutexLock lock(&mu_);
  if (settings_.folder.empty()) {
    const auto found = kept_.find(id);
    if (found == kept_.end()) return none;
    return found->second.bytes;
  }
  LS_ASSIGN_OR_RETURN(std::string bytes, ReadWhole(PathOf(id)));
  if (PackageId(bytes) == id) return bytes;
  ::unlink(PathOf(id).c_str());
  return absl::DataLossError(absl::StrCat("the package in ", PathOf(id), " was damaged"));
}

}  // namespace lockstep::coordinator
