// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction over ranks, in rank order, for every dtype. bfloat16 and float16 are
// accumulated in fp32 and rounded once, to nearest even. Also the names of dtypes and operations.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_REDUCE_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "collectives/communicator.h"

namespace lockstep {

// out[i] = op over `inputs` in their order. `out` may be one of the inputs, but not overlap them
// otherwise. Integers wrap; kMax and kMin of a NaN and a number keep the earlier of the two.
// REQUIRES: inputs is not empty.
void ReduceInOrder(absl::Span<const void* const> inputs, void* out, int64_t count, DType dtype,
                   ReduceOp op);

// "f32", "bf16", ...
std::string_view DTypeName(DType dtype);
// "sum", ...
std::string_view ReduceOpName(ReduceOp op);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_REDUCE_H_
