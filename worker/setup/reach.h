// SPDX-License-Identifier: Apache-2.0
// Where a worker's peers are, and where they find it.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_SETUP_REACH_H_
#define LOCKSTEP_WORKER_SETUP_REACH_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace lockstep::worker {

// Returns whether workers of the job may be on other hosts than this one: on CPUs it starts on what
// there is, also on more hosts than it asks for. GPUs of several hosts are never put together so.
bool MayBeOverHosts(const WorkerBootstrap& bootstrap);

// How peers reach this worker: its memory by the socket `shm`, and `tcp_port` at each of its
// addresses (0: it has no port). They show `key`.
DataPlaneAddress AddressOf(const WorkerBootstrap& bootstrap, const std::string& shm,
                           const std::string& key, int tcp_port);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_REACH_H_
