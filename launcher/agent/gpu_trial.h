// SPDX-License-Identifier: Apache-2.0
// Whether the GPUs of this host compute: the worker program tries them in a process of its own, as
// `launcher doctor` does. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_GPU_TRIAL_H_
#define LOCKSTEP_LAUNCHER_AGENT_GPU_TRIAL_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/agent/gpus.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// Returns what is wrong with them, in words; empty: nothing. Blocks until the process has ended; it
// is killed after `limit`, which is a finding, too.
std::string TryGpus(Spawner* spawner, const std::string& worker_program, absl::Duration limit);

// TryGpus as a function of nothing, for HealthWatch, with a limit of two minutes. Null where `gpus`
// is empty, or a variable names them in the driver's place (LOCKSTEP_GPUS), which cannot be tried.
std::function<std::string()> GpuTrial(const std::vector<Gpu>& gpus, Spawner* spawner,
                                      const std::string& worker_program);

// Returns what the answer of a doctor with this exit code says against the GPUs. Empty: nothing.
std::string ReadTrial(const std::string& answer, int code, int signal);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_GPU_TRIAL_H_
