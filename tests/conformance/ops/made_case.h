// SPDX-License-Identifier: Apache-2.0
// A case of an op made concrete: its graph and its inputs, in fp32 and in 16 bits; and how near a
// kernel has to come. Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_OPS_MADE_CASE_H_
#define LOCKSTEP_TESTS_CONFORMANCE_OPS_MADE_CASE_H_

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/op.h"
#include "tests/conformance/ops/reference.h"

namespace lockstep::engine {

// Values in [-1, 1), away from 0 so that no kink of relu lies within a finite difference; integers
// in
// [-1, classes).
Doubles MakeValues(const TensorType& type, uint64_t site, int64_t classes);

// Zeros, both infinities, NaN, the largest and the smallest numbers of fp32 and others between
// them.
Doubles SpecialValues(int64_t count);
// Puts NaN in every third place, and infinities among the others.
void PutUnusual(Doubles* values);

struct Prepared {
  Graph graph;
  std::vector<Value> leaves;
  std::vector<Doubles> inputs;
  Value made;
};
// A graph of one node. Ends the test when the case is no case of the op.
Prepared Prepare(const OpDef& op, const OpCase& test);

std::string Describe(const OpDef& op, const OpCase& test);

// The error of a sum of n rounded products of values below 1 grows as sqrt(n).
double Tolerance(const OpCase& test);

// `values` as `type` has them.
Doubles Rounded(DType type, Doubles values);

// The case with fp32 inputs in 16 bits: all of them, or every second one.
OpCase HalfCase(const OpCase& test, DType type, size_t every);

// Arithmetic is that of fp32 on the rounded inputs; a result in 16 bits is then rounded once: half
// a unit of its last place is all that is added to the fp32 tolerance, and of each element `more`,
// where it is given.
void ExpectRoundedOnce(const Node& node, const std::vector<Doubles>& is,
                       const std::vector<Doubles>& expected, double tolerance,
                       const std::vector<Doubles>& more = {});

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_CONFORMANCE_OPS_MADE_CASE_H_
