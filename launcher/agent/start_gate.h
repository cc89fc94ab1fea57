// SPDX-License-Identifier: Apache-2.0
// Workers that wait until their host was looked at (health_watch.h): the first ones of each job.
// Those that come while a look is under way wait with them.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_AGENT_START_GATE_H_
#define LOCKSTEP_LAUNCHER_AGENT_START_GATE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launcher {

class StartGate {
 public:
  enum class Answer {
    kStart,  // nothing is waited for
    kAsk,    // it waits, and a look is to be asked for
    kWait,   // it waits for the one that was asked for
  };
  // `others_run`: some worker of the job runs here.
  Answer Add(const std::string& job_id, const std::string& incarnation, bool others_run) {
    const auto waiting = waiting_.find(job_id);
    if (waiting != waiting_.end()) {
      waiting->second.push_back(incarnation);
      return Answer::kWait;
    }
    if (others_run) return Answer::kStart;
    waiting_[job_id] = {incarnation};
    return Answer::kAsk;
  }
  // The look is over: those of the job that have waited.
  std::vector<std::string> Open(const std::string& job_id) {
    const auto waiting = waiting_.find(job_id);
    if (waiting == waiting_.end()) return {};
    std::vector<std::string> all = std::move(waiting->second);
    waiting_.erase(waiting);
    return all;
  }
  // It waits no more. Returns whether it did.
  bool Leave(const std::string& incarnation) {
    for (auto& [job_id, waiting] : waiting_) {
      if (std::erase(waiting, incarnation) > 0) return true;
    }
    return false;
  }

 private:
  std::map<std::string, std::vector<std::string>> waiting_;  // by job
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_START_GATE_H_
