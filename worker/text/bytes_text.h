// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people read them. Thread-safety: pure function.
#ifndef LOCKSTEP_WORKER_TEXT_BYTES_TEXT_H_
#define LOCKSTEP_WORKER_TEXT_BYTES_TEXT_H_

#include <string>

namespace lockstep::worker {

// "1.5 GiB", "12.0 MiB", "512 B".
std::string BytesText(double bytes);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_TEXT_BYTES_TEXT_H_
