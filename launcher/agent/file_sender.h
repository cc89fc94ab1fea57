// SPDX-License-Identifier: Apache-2.0
// Sends files of runs, as the coordinator asks for them, one request after another on a thread of
// its own and at a bounded rate, so that nothing else of the node waits for it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_FILE_SENDER_H_
#define LOCKSTEP_LAUNCHER_AGENT_FILE_SENDER_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/files.h"

namespace lockstep::launcher {

class FileSender {
 public:
  struct Settings {
    std::string run_dir = {};  // as in AgentOptions
    std::string runs_dir = {};
    // As in WorkerProcess::Node: what the job's user may not read is not sent.
    bool as_users = false;
    bool allow_root = false;
    Clock* clock = Clock::Real();
    double bytes_per_second = 64 << 20;
    std::function<std::unique_ptr<coordinator::FileStream>()> open = {};
  };
  explicit FileSender(Settings settings);
  // Breaks off what is being sent; waits for what is being read.
  ~FileSender();

  // The same, but waits `timeout` at most. Returns the job whose files are being sent still; empty:
  // none.
  std::string Stop(absl::Duration timeout);

  // Sends what is asked for when what was asked for before is sent; a request that finds too many
  // before it is left out. Does not block.
  void Send(const SendFiles& wanted);

 private:
  void Loop();
  void Carry(const SendFiles& wanted);
  // The files, or why not.
  absl::Status SendAll(const SendFiles& wanted, coordinator::FileStream* stream);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !wanted_.empty(); }

  const Settings settings_;
  absl::Mutex mu_;
  CondVar changed_;
  std::deque<SendFiles> wanted_ ABSL_GUARDED_BY(mu_);
  std::string job_ ABSL_GUARDED_BY(mu_);
  coordinator::FileStream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the thread
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;  // last: uses the rest
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_FILE_SENDER_H_
