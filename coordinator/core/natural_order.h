// SPDX-License-Identifier: Apache-2.0
// The order in which people number their hosts.
// Thread-safety: pure function.
#ifndef LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_
#define LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::coordinator {

// Returns whether `a` comes before `b` when runs of digits count as numbers: host2 before host10. A
// total order: of two different names one comes first.
bool NaturalLess(const std::string& a, const std::string& b);

// One of many names that are sorted so: what compares them without reading their numbers again.
class NaturalName {
 public:
  explicit NaturalName(const std::string* name);  // which outlives it
  const std::string& name() const { return *name_; }
  // Below 0: it comes before the other; 0: they are the same.
  int Compare(const NaturalName& other) const;

 private:
  const std::string* name_;
  // The first characters, as many as there is room for; what a prefix that is no longer is known
  // by.
  uint64_t head_ = 0;
  // What is before its first number, of up to 18 digits, and that number; -1: it has none such.
  size_t prefix_ = 0;
  int64_t number_ = -1;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NATURAL_ORDER_H_
