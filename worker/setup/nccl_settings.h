// SPDX-License-Identifier: Apache-2.0
// What a job's `nccl` section means to this worker: NCCL's environment variables, and options of
// the transport. Thread-safety: SetNcclEnvironment before any thread starts; the others are pure.
#ifndef LOCKSTEP_WORKER_SETUP_NCCL_SETTINGS_H_
#define LOCKSTEP_WORKER_SETUP_NCCL_SETTINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "proto/job.pb.h"

namespace lockstep::worker {

// Returns whether workers that share a GPU are to reduce by NCCL, if it can.
bool MayShareGpu(const Nccl& nccl);

// The variables that `nccl` sets, by name: a field's own name behind NCCL_, then those of its
// `env`. `shared_gpu`: workers of this host share GPUs.
std::vector<std::pair<std::string, std::string>> NcclVariables(const Nccl& nccl, bool shared_gpu);

// Sets them in this process, and gives NCCL's watch (RAS) a port of this process's own unless the
// user has chosen one. Others that the user has set stay.
void SetNcclEnvironment(const Nccl& nccl, bool shared_gpu);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_NCCL_SETTINGS_H_
