// SPDX-License-Identifier: Apache-2.0
// What a CPU says about its instruction sets is not yet proof that our kernels compute on it what
// they should: a hypervisor may hide a part, and a set may never have run where it was written. So
// before a set is used, each of its kernels works on a little made data, for some milliseconds, and
// is held to the portable ones, bit for bit; tiles of products, whose size is the set's own, to the
// chain of additions that defines them.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CPU_SELF_CHECK_H_
#define LOCKSTEP_ENGINE_CPU_SELF_CHECK_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/optim_kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine {

// All kernels of one instruction set.
struct KernelTables {
  const SimdKernels* simd = nullptr;
  const RowKernels* rows = nullptr;
  const OptimKernels* optim = nullptr;
  const ImageSimd* image = nullptr;
  const HalfKernels* half = nullptr;
};

// Those for `isa`. Running them REQUIRES: this CPU has it.
KernelTables TablesFor(Isa isa);

// The first kernel that does not compute what it should, such as "tile of 3 rows"; "" when all do.
std::string FirstWrongKernel(const KernelTables& tables);

// The first of `best` and the sets below it whose kernels all compute what they should. `warn` gets
// a sentence for each that is passed over. The portable set is taken without a look.
Isa HighestSound(Isa best, absl::FunctionRef<KernelTables(Isa)> tables,
                 absl::FunctionRef<void(const std::string&)> warn);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_SELF_CHECK_H_
