// SPDX-License-Identifier: Apache-2.0
// What a worker has printed on its way to its log: texts that wait for their disk, and can be left
// to another writer where that does not answer.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_LOG_QUEUE_H_
#define LOCKSTEP_LAUNCHER_AGENT_LOG_QUEUE_H_

#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "launcher/agent/output.h"
#include "launcher/spawner/process_starter.h"

namespace lockstep::launcher {

class LogQueue {
 public:
  using Text = ProcessStarter::Output::Text;

  // One more that waits.
  void Add(Text text);
  // Writes the oldest text into `log`; nothing when there is none, and after Stop. One call at a
  // time; it blocks as the disk does. Errors: as of LogFile::Append; the text is through then, too.
  absl::Status WriteOldest(LogFile* log);
  // No text is begun any more.
  void Stop();
  // Returns what is not written. Of the first text, when it is being written, the log may have
  // something all the same, now or later.
  std::vector<Text> Unwritten() const;

 private:
  mutable absl::Mutex mu_;
  std::deque<Text> texts_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_LOG_QUEUE_H_
