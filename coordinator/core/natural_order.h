// SPDX-License-Identifier: Apache-2.0
// The order in which people number their hosts.
// Thread-safety: pure function.
#ifndef LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_
#define LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_

#include <string>

namespace lockstep::coordinator {

// Whether `a` comes before `b` when runs of digits count as numbers: host2 before host10. A total
// order: of two different names one comes first.
bool NaturalLess(const std::string& a, const std::string& b);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_
