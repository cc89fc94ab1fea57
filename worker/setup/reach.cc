// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/reach.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep::worker {

bool MayBeOverHosts(const WorkerBootstrap& bootstrap) {
  if (bootstrap.data_addresses().empty()) return false;
  const WorkerAssignment& assignment = bootstrap.assignment();
  return assignment.device().kind() != "cuda" || assignment.spec().resources().nodes() > 1;
}

DataPlaneAddress AddressOf(const WorkerBootstrap& bootstrap, const std::string& shm,
                           const std::string& key, int tcp_port) {
  DataPlaneAddress at;
  at.set_node_id(bootstrap.node_id());
  at.set_shm(shm);
  at.set_key(key);
  at.set_life_slot(bootstrap.life_slot());
  if (tcp_port == 0) return at;
  for (const std::string& address : bootstrap.data_addresses()) {
    const bool v6 = absl::StrContains(address, ':');
    at.add_tcp(absl::StrCat(v6 ? "[" : "", address, v6 ? "]:" : ":", tcp_port));
  }
  return at;
}

}  // namespace lockstep::worker
