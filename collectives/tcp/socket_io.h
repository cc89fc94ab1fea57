// SPDX-License-Identifier: Apache-2.0
// Small pieces of non-blocking socket work. Thread-safety: pure functions, but for
// AllowConnections, which is for one thread.
#ifndef LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_
#define LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lockstep {

enum class Filled {
  kYes,    // all bytes are there
  kLater,  // some are to come
  kEnded,  // the connection has ended
};

// Reads until `input` has `bytes` bytes, and no further. `error` gets errno when it ended, 0 for an
// end of file.
Filled ReadUpTo(int socket, size_t bytes, std::string* input, int* error);

// Returns whether all of the few bytes of `text` went out at once. A handshake's message always
// fits.
bool SendAll(int socket, std::string_view text);

// Small writes go at once.
void SendWithoutDelay(int socket);

// An idle peer's kernel is asked each second, or less often where `silence` is more than two
// minutes; the connection ends when it has not answered for `silence` (at least 3 s).
void ProbeWhenIdle(int socket, absl::Duration silence);

// Sees to it that so many more files can be open beside the `open` ones: raises this process' soft
// limit as far as that takes. Errors: ResourceExhausted when the hard limit is below it, saying so.
absl::Status AllowConnections(int64_t open, int64_t more);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_
