// SPDX-License-Identifier: Apache-2.0
// The sampler's permutation is a bijection for every size up to 5,000 and for primes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "data/sampler.h"

namespace lockstep::data {
namespace {

// `seen` is scratch of at least n bytes.
::testing::AssertionResult IsBijection(uint64_t n, uint64_t key, std::vector<uint8_t>* seen) {
  const Permutation permutation(n, key);
  std::fill_n(seen->begin(), n, uint8_t{0});
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t image = permutation(i);
    if (image >= n) return ::testing::AssertionFailure() << "n " << n << ": " << image;
    if ((*seen)[image]++ != 0) {
      return ::testing::AssertionFailure() << "n " << n << ": twice " << image;
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(SamplerSizesTest, EverySizeUpToFiveThousand) {
  std::vector<uint8_t> seen(5000);
  for (uint64_t n = 1; n <= 5000; ++n) ASSERT_TRUE(IsBijection(n, n * 31, &seen));
}

TEST(SamplerSizesTest, LargePrimes) {
  std::vector<uint8_t> seen(1299709);
  for (const uint64_t n : {524287, 611953, 1299709}) ASSERT_TRUE(IsBijection(n, 7, &seen));
}

}  // namespace
}  // namespace lockstep::data
