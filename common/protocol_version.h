// SPDX-License-Identifier: Apache-2.0
// The version of what coordinators, agents and workers say to each other. It rises when a side
// would not do with what the other one, of the version before, says. A coordinator serves its own
// version and the one before, so coordinators are upgraded first, and agents after them.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_PROTOCOL_VERSION_H_
#define LOCKSTEP_COMMON_PROTOCOL_VERSION_H_

#include <algorithm>

namespace lockstep {

inline constexpr int kProtocolVersion = 2;

// The oldest version that a coordinator of version `own` serves.
constexpr int OldestServed(int own) { return std::max(1, own - 1); }
constexpr bool IsServed(int version, int own) {
  return version >= OldestServed(own) && version <= own;
}

// kProtocolVersion, or what LOCKSTEP_PROTOCOL_VERSION says: tests are of several versions.
int SpokenProtocolVersion();

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_PROTOCOL_VERSION_H_
