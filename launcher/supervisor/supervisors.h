// SPDX-License-Identifier: Apache-2.0
// An agent's supervisors: one for each job that has workers here, started when the first worker is,
// and found again by the next agent through their sockets in the agent's state folder.
// Thread-safety: thread-compatible; their callbacks come on threads of their own.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISORS_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISORS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "launcher/supervisor/supervisor_client.h"

namespace lockstep::launcher {

class Supervisors {
 public:
  struct Options {
    std::string folder;                      // of the sockets; its owner's alone
    std::string program = "/proc/self/exe";  // that becomes a supervisor: kSupervisorFlag
    std::string worker_program;
    absl::Duration orphan_grace;
  };
  struct Found {
    std::shared_ptr<SupervisorClient> supervisor;
    std::vector<SupervisorClient::Kept> processes;
  };

  explicit Supervisors(Options options) : options_(std::move(options)) {}

  // Makes the folder and takes over the supervisors that an agent before left there. Each is to be
  // told whom to call (SupervisorClient::Adopt) and then to Run. `complain` is told of those that
  // do not answer, which are left alone. Blocks for a moment. Errors: as of mkdir(2) and open(2).
  absl::StatusOr<std::vector<Found>> TakeOver(
      const std::function<void(const std::string&)>& complain);
  // The job's, which is started if need be. Errors: ResourceExhausted and what else hinders the
  // start of a process.
  absl::StatusOr<std::shared_ptr<SupervisorClient>> Of(const std::string& job_id);

 private:
  absl::StatusOr<std::shared_ptr<SupervisorClient>> Start(const std::string& job_id);

  const Options options_;
  UniqueFd folder_;
  std::map<std::string, std::shared_ptr<SupervisorClient>> by_job_;
  // That start nothing any more, until they are gone: who is a child is waited for by its client.
  std::vector<std::shared_ptr<SupervisorClient>> leaving_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISORS_H_
