// SPDX-License-Identifier: Apache-2.0
// Functions of fp64 whose values reach weights. The C library's differ in the last bits from one
// version to another, and from one CPU to another; these are made of additions, multiplications
// and divisions, each rounded on its own: the same bits everywhere.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_MATH_MATH_H_
#define LOCKSTEP_ENGINE_MATH_MATH_H_

namespace lockstep::engine {

// The natural logarithm, exact to some 2e-16 of it or of 1. That of 0 is minus infinity, that of a
// negative number NaN. REQUIRES: x is not subnormal.
double Log(double x);
// e to the power x, exact to some 2e-16 (1 + |x|) of it; 0 below -708, infinite above 709.
double Exp(double x);
// x to the power y. REQUIRES: x >= 0. Powers by whole numbers up to 1024 are products.
double Power(double x, double y);
// The cosine of 2 pi `turns`. REQUIRES: |turns| < 2^40.
double CosineOfTurns(double turns);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MATH_MATH_H_
