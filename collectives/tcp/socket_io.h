// SPDX-License-Identifier: Apache-2.0
// Small pieces of non-blocking socket work. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_
#define LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_

#include <cstddef>
#include <string>
#include <string_view>

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

// Whether all of the few bytes of `text` went out at once. A handshake's message always fits.
bool SendAll(int socket, std::string_view text);

// Small writes go at once.
void SendWithoutDelay(int socket);

// An idle peer's kernel is asked each second; the connection ends when it has not answered for
// `silence`.
void ProbeWhenIdle(int socket, absl::Duration silence);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_SOCKET_IO_H_
