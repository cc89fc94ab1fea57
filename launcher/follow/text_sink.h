// SPDX-License-Identifier: Apache-2.0
// Where a renderer's text goes. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_TEXT_SINK_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_TEXT_SINK_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace lockstep::launcher {

class TextSink {
 public:
  // Bytes that may wait for who reads before who brings more waits, too.
  static constexpr size_t kRoom = size_t{1} << 20;

  virtual ~TextSink() = default;
  // Take text for stdout or stderr: whole lines or, on a terminal, the progress line. Do not block.
  virtual void Out(std::string_view text) = 0;
  virtual void Err(std::string_view text) = 0;
  // Returns how many bytes are taken and not yet written.
  virtual size_t waiting() const { return 0; }
  // Blocks while more than kRoom wait, until Hurry.
  virtual void AwaitRoom() {}
  // Blocks until everything is written; after Hurry only while it goes on. Errors: why the newest
  // text for stdout could not be written.
  virtual absl::Status Flush() { return absl::OkStatus(); }
  // From now on nobody waits for one who does not read: what finds no room is left out.
  virtual void Hurry() {}
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_TEXT_SINK_H_
