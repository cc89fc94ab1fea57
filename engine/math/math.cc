// SPDX-License-Identifier: Apache-2.0
#include "engine/math/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/math/series.h"

namespace lockstep::engine {
namespace {

// ln 2 in two parts: n times the first is exact for |n| < 2^20.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kMostFactors = 1024;

double WholePower(double x, int factors) {
  double power = 1;
  for (; factors > 0; factors /= 2, x *= x) {
    if (factors % 2 != 0) power *= x;
  }
  return power;
}

}  // namespace

double Log(double x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(x > 0)) return x == 0 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
  if (x == kInfinity) return x;
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  constexpr int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const auto bits = std::bit_cast<int64_t>(x);
  const int64_t exponent = (bits - kSqrtHalf) >> 52;
  const double f = std::bit_cast<double>(bits - exponent * (int64_t{1} << 52)) - 1;
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (e * kLn2Low + series::Log1p(f));
}

double Exp(double x) {
  if (std::isnan(x)) return x;
  if (x < -708) return 0;
  if (x > 709) return std::numeric_limits<double>::infinity();
  const double n = std::floor(x * M_LOG2E + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor: |r| <= 0.35, and 14 terms leave less than 1e-17.
  double sum = 1;
  for (int i = 14; i > 0; --i) sum = sum * r / i + 1;
  return std::ldexp(sum, static_cast<int>(n));
}

double Power(double x, double y) {
  if (std::fabs(y) <= kMostFactors && std::floor(y) == y) {
    const double power = WholePower(x, static_cast<int>(std::fabs(y)));
    return y < 0 ? 1 / power : power;
  }
  if (x == 0) return y < 0 ? std::numeric_limits<double>::infinity() : 0;
  return Exp(y * Log(x));
}

double CosineOfTurns(double turns) {
  const double quarters = std::floor(turns * 4 + 0.5);
  const double x = (turns - quarters * 0.25) * (2 * M_PI);  // the difference is exact
  const auto quarter = static_cast<uint64_t>(static_cast<int64_t>(quarters)) % 4;
  const double value = quarter % 2 == 0 ? series::Cosine(x) : series::Sine(x);
  return quarter == 1 || quarter == 2 ? -value : value;
}

}  // namespace lockstep::engine
