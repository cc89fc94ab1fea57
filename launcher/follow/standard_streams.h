// SPDX-License-Identifier: Apache-2.0
// The process's stdout and stderr for those who must not wait until they are read: one thread
// writes what it was handed. Texts of one stream keep their order, and those of both where both
// lead to the same place, such as a terminal; elsewhere a stream that nobody reads holds the other
// one up no more than a moment. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_STANDARD_STREAMS_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_STANDARD_STREAMS_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/thread.h"
#include "launcher/follow/text_sink.h"

namespace lockstep::launcher {

class StandardStreams : public TextSink {
 public:
  // Texts of those who do not wait for room are left out and counted where so many bytes of their
  // stream wait; after Hurry where kRoom do.
  static constexpr size_t kMost = size_t{8} << 20;
  // After Hurry it is given up when nothing was read for so long.
  static constexpr absl::Duration kStill = absl::Seconds(1);

  // Writes to these descriptors, which stay the caller's; to the terminal where one is a
  // terminal's. `still`: kStill, but for tests.
  explicit StandardStreams(int out = STDOUT_FILENO, int err = STDERR_FILENO,
                           absl::Duration still = kStill);
  // Blocks as Flush.
  ~StandardStreams() override;

  void Out(std::string_view text) override { Take(0, text); }
  void Err(std::string_view text) override { Take(1, text); }
  size_t waiting() const override;
  void AwaitRoom() override;
  // Returns why the first of all texts for stdout that could not be written was not, whatever came
  // after it. Does not block.
  absl::Status out_failure() const;
  absl::Status Flush() override;
  void Hurry() override;

 private:
  struct Text {
    uint64_t number;  // of both streams' texts
    std::string text;
    size_t written = 0;
  };
  struct Stream {
    int fd = -1;
    UniqueFd terminal = UniqueFd();  // what fd is then
    size_t at_once = 0;              // bytes that do not block when poll(2) says that there is room
    std::deque<Text> texts = {};
    size_t waiting = 0;  // bytes
  };
  void Take(int stream, std::string_view text);
  void Add(Stream& to, std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake() const;
  // Which stream's text is the oldest; -1: there is none.
  int Oldest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  void WriteSome(int stream);

  const absl::Duration still_;
  UniqueFd wake_;
  bool same_place_ = false;
  mutable absl::Mutex mu_;
  CondVar changed_;
  Stream streams_[2] ABSL_GUARDED_BY(mu_);  // stdout, stderr
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;    // bytes of both
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;  // texts that found no room, and nobody was told
  // How the newest text for stdout went, once it has gone, and its number.
  absl::Status out_written_ ABSL_GUARDED_BY(mu_);
  uint64_t newest_out_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status out_failure_ ABSL_GUARDED_BY(mu_);
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_STANDARD_STREAMS_H_
