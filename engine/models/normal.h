// SPDX-License-Identifier: Apache-2.0
// Normal random numbers, addressed, many at a time: the first weights of a large model are a
// hundred million of them, and every worker makes them before its first step.
// Thread-safety: pure functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_MODELS_NORMAL_H_
#define LOCKSTEP_ENGINE_MODELS_NORMAL_H_

#include <cstdint>

namespace lockstep::engine {

// values[i] of mean 0 and standard deviation `deviation`, for 0 <= i < count. Elements 4 c to 4 c +
// 3 are made of the four Philox4x32-10 words of counter c under `key`: words 0 and 1 give two by
// the method of Box and Muller (1958), words 2 and 3 the others. The same bits on every processor:
// logarithm, sine and cosine are our own (math/series.h), in double precision, exact to some 1e-16.
void FillNormal(uint64_t key, double deviation, float* values, int64_t count);

// The same by the instructions that every processor has, for tests.
void FillNormalPortably(uint64_t key, double deviation, float* values, int64_t count);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_NORMAL_H_
