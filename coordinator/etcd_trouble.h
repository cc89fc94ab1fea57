// SPDX-License-Identifier: Apache-2.0
// Says why etcd does not answer, where gRPC only says that it does not.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_ETCD_TROUBLE_H_
#define LOCKSTEP_COORDINATOR_ETCD_TROUBLE_H_

#include <string>

#include "coordinator/store/etcd/options.h"

namespace lockstep::coordinator {

// Why no call to an endpoint of etcd comes about, where TLS or the lack of it is the cause, and
// what to do. Empty: it is something else. Tries one connection, for a moment at most.
std::string ExplainEtcd(const EtcdOptions& options, const std::string& endpoint);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_ETCD_TROUBLE_H_
