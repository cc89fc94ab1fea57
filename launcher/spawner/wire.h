// SPDX-License-Identifier: Apache-2.0
// The messages between the launcher and its spawner process, over one SOCK_SEQPACKET socket. Both
// ends are the same program image, so the encoding needs no versions.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_WIRE_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_WIRE_H_

#include <time.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::launcher {

// What the launcher asks for.
struct SpawnerCommand {
  enum class Kind : uint8_t {
    kSpawn = 1,       // start a process; the descriptors of the message become its 1, 2, 3, ...
    kKill = 2,        // signal the process group of `id`
    kRemoveFile = 3,  // unlink argv[0] when the spawner ends
    kRemoveDir = 4,   // rmdir argv[0] when the spawner ends
  };
  Kind kind = Kind::kSpawn;
  uint64_t id = 0;
  int32_t signal = 0;
  bool keep_output = false;  // no descriptors for 1 and 2 in the message: keeps the launcher's own
  std::vector<std::string> argv;
  std::vector<std::string> set_env;  // "NAME=value"
  std::vector<std::string> unset_env;
  std::string cwd;  // empty: the launcher's
  // As whom it runs, where the launcher is root's; -1: as the launcher.
  int64_t uid = -1;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
};

// The command as bytes, for one message.
std::string EncodeCommand(const SpawnerCommand& command);
// Errors: Internal when the text was not made by EncodeCommand.
absl::StatusOr<SpawnerCommand> DecodeCommand(std::string_view text);

// The time of CLOCK_MONOTONIC, which all processes of a host share.
inline int64_t MonotonicNanos() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What the spawner reports. Sent as its bytes.
struct SpawnerEvent {
  enum class Kind : uint32_t { kStarted = 1, kFailed = 2, kExited = 3 };
  Kind kind = Kind::kStarted;
  int32_t pid = 0;
  uint64_t id = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;
  int64_t peak_rss_bytes = 0;
  int64_t monotonic_nanos = 0;  // when it was: see MonotonicNanos
  int32_t error_number = 0;     // kFailed
  char failed_call[20] = {};
};
static_assert(std::is_trivially_copyable_v<SpawnerEvent>);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_WIRE_H_
