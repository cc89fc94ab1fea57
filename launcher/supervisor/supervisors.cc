// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/supervisors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "launcher/spawner/child.h"
#include "launcher/supervisor/wire.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kAnswer = absl::Seconds(5);
constexpr int kBacklog = 16;
constexpr char kEnding[] = ".sock";

// The address of a file in a folder whose own path may be longer than one can be.
sockaddr_un AddressOf(int folder, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat("/proc/self/fd/", folder, "/", name);
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

absl::StatusOr<UniqueFd> Listen(int folder, const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "a supervisor's socket");
  const sockaddr_un address = AddressOf(folder, name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::fchmodat(folder, name.c_str(), 0600, 0) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, "a supervisor's socket");
  }
  return socket;
}

absl::StatusOr<UniqueFd> Connect(int folder, const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "a supervisor's socket");
  const sockaddr_un address = AddressOf(folder, name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, "connecting to a supervisor");
  }
  if (!IsOwnUser(socket.get())) {
    return absl::PermissionDeniedError("another user's process listens at a supervisor's socket");
  }
  return socket;
}

std::vector<std::string> SocketsIn(int folder) {
  std::vector<std::string> names;
  DIR* const listing = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing == nullptr) return names;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string name = entry->d_name;
    if (name.ends_with(kEnding)) names.push_back(name);
  }
  ::closedir(listing);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::vector<Supervisors::Found>> Supervisors::TakeOver(
    const std::function<void(const std::string&)>& complain) {
  if (::mkdir(options_.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make ", options_.folder));
  }
  folder_.reset(::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder_.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open ", options_.folder));
  std::vector<Found> all;
  for (const std::string& name : SocketsIn(folder_.get())) {
    absl::StatusOr<UniqueFd> socket = Connect(folder_.get(), name);
    if (absl::IsUnavailable(socket.status()) || absl::IsNotFound(socket.status())) {
      // Nobody listens any more: it was killed, or this host was started again.
      ::unlinkat(folder_.get(), name.c_str(), 0);
      continue;
    }
    if (!socket.ok()) {
      complain(absl::StrCat("a supervisor (", options_.folder, "/", name,
                            ") cannot be reached and is left alone: ", socket.status().message()));
      continue;
    }
    Found found;
    absl::Status heard;
    absl::StatusOr<std::unique_ptr<SupervisorClient>> client =
        SupervisorClient::Greet(*std::move(socket), /*child=*/-1);
    if (client.ok()) {
      found.supervisor = *std::move(client);
      absl::StatusOr<std::vector<SupervisorClient::Kept>> kept = found.supervisor->Await(kAnswer);
      heard = kept.status();
      if (kept.ok()) found.processes = *std::move(kept);
    } else {
      heard = client.status();
    }
    // One that is just ending has closed the connection.
    if (absl::IsUnavailable(heard)) continue;
    if (!heard.ok()) {
      complain(absl::StrCat("a supervisor (", options_.folder, "/", name,
                            ") cannot be taken over and is left alone: ", heard.message()));
      continue;
    }
    if (!found.processes.empty()) by_job_[found.supervisor->job_id()] = found.supervisor;
    all.push_back(std::move(found));
  }
  return all;
}

absl::StatusOr<std::shared_ptr<SupervisorClient>> Supervisors::Of(const std::string& job_id) {
  std::erase_if(leaving_, [](const auto& client) { return client->over(); });
  std::erase_if(by_job_, [this](const auto& entry) {
    if (entry.second->usable()) return false;
    leaving_.push_back(entry.second);
    return true;
  });
  const auto found = by_job_.find(job_id);
  if (found != by_job_.end()) return found->second;
  LS_ASSIGN_OR_RETURN(std::shared_ptr<SupervisorClient> started, Start(job_id));
  by_job_[job_id] = started;
  return started;
}

absl::StatusOr<std::shared_ptr<SupervisorClient>> Supervisors::Start(const std::string& job_id) {
  const std::string name = absl::StrCat(RandomHex(8), kEnding);
  LS_ASSIGN_OR_RETURN(UniqueFd listening, Listen(folder_.get(), name));
  SupervisorSetup setup;
  setup.set_job_id(job_id);
  setup.set_orphan_grace_nanos(absl::ToInt64Nanoseconds(options_.orphan_grace));
  setup.set_socket(absl::StrCat(options_.folder, "/", name));
  setup.set_program(options_.worker_program);
  LS_ASSIGN_OR_RETURN(UniqueFd setup_file, MemoryFileOf(setup));
  // Returns what replaces the file later is for the jobs that begin later.
  UniqueFd program(::open(options_.worker_program.c_str(), O_RDONLY | O_CLOEXEC));
  if (!program.valid()) program.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<UniqueFd> fds;
  fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < 2; ++i) fds.emplace_back(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  for (UniqueFd* fd : {&listening, &setup_file, &program}) fds.push_back(std::move(*fd));
  const UniqueFd own(::open(options_.program.c_str(), O_RDONLY | O_CLOEXEC));
  if (!own.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open ", options_.program));
  const ChildStart start =
      StartDetached(own.get(), {"lockstep-supervisor", kSupervisorFlag, job_id}, std::move(fds));
  absl::Status failed;
  if (start.pid < 0) {
    failed = ErrnoStatus(start.error_number,
                         absl::StrCat("cannot start a supervisor: ", start.failed_call));
  } else {
    absl::StatusOr<UniqueFd> socket = Connect(folder_.get(), name);
    if (socket.ok()) {
      LS_ASSIGN_OR_RETURN(std::unique_ptr<SupervisorClient> client,
                          SupervisorClient::Greet(*std::move(socket), start.pid));
      client->Run();
      return std::shared_ptr<SupervisorClient>(std::move(client));
    }
    failed = socket.status();
  }
  ::unlinkat(folder_.get(), name.c_str(), 0);
  return failed;
}

}  // namespace lockstep::launcher
