// SPDX-License-Identifier: Apache-2.0
// The series behind logarithm, sine and cosine (math.h, models/normal.cc), for loops that become
// vectors: no branch, and each product and sum rounded on its own (the build says
// -ffp-contract=off), so that vectors of any width give the same bits.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_MATH_SERIES_H_
#define LOCKSTEP_ENGINE_MATH_SERIES_H_

#define LOCKSTEP_SERIES inline __attribute__((always_inline))

namespace lockstep::engine::series {

// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)). With s = f / (2 + f) it is 2 atanh(s) =
// f - h + s (h + r), h = f^2 / 2 and r the terms of the series behind the first, of which ten leave
// less than 1e-17.
LOCKSTEP_SERIES double Log1p(double f) {
  const double s = f / (2 + f), s2 = s * s;
  double r = 2.0 / 21;
  r = r * s2 + 2.0 / 19;
  r = r * s2 + 2.0 / 17;
  r = r * s2 + 2.0 / 15;
  r = r * s2 + 2.0 / 13;
  r = r * s2 + 2.0 / 11;
  r = r * s2 + 2.0 / 9;
  r = r * s2 + 2.0 / 7;
  r = r * s2 + 2.0 / 5;
  r = r * s2 + 2.0 / 3;
  r = r * s2;
  const double h = 0.5 * f * f;
  return f - (h - s * (h + r));
}

// Sine and cosine of |x| <= pi / 4, by Taylor to 1e-17.
LOCKSTEP_SERIES double Sine(double x) {
  const double x2 = x * x;
  double sine = 1.0 / 355687428096000;  // 1 / 17!
  sine = sine * x2 - 1.0 / 1307674368000;
  sine = sine * x2 + 1.0 / 6227020800;
  sine = sine * x2 - 1.0 / 39916800;
  sine = sine * x2 + 1.0 / 362880;
  sine = sine * x2 - 1.0 / 5040;
  sine = sine * x2 + 1.0 / 120;
  sine = sine * x2 - 1.0 / 6;
  return x + x * (x2 * sine);
}
// See Sine.
LOCKSTEP_SERIES double Cosine(double x) {
  const double x2 = x * x;
  double cosine = 1.0 / 20922789888000;  // 1 / 16!
  cosine = cosine * x2 - 1.0 / 87178291200;
  cosine = cosine * x2 + 1.0 / 479001600;
  cosine = cosine * x2 - 1.0 / 3628800;
  cosine = cosine * x2 + 1.0 / 40320;
  cosine = cosine * x2 - 1.0 / 720;
  cosine = cosine * x2 + 1.0 / 24;
  return 1 + (x2 * x2 * cosine - 0.5 * x2);
}

}  // namespace lockstep::engine::series

#endif  // LOCKSTEP_ENGINE_MATH_SERIES_H_
