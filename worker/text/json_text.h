// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_TEXT_JSON_TEXT_H_
#define LOCKSTEP_WORKER_TEXT_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace lockstep::worker {

// A JSON string with its quotes. What is not UTF-8 becomes U+FFFD, byte by byte.
std::string JsonString(std::string_view text);
// A number that reads back as the same double; null when it is not finite.
std::string JsonNumber(double value);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_TEXT_JSON_TEXT_H_
