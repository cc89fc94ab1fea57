// SPDX-License-Identifier: Apache-2.0
// The table of all ops with their kernels: a plain array, in which a new op is one line.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPS_REGISTRY_H_
#define LOCKSTEP_ENGINE_OPS_REGISTRY_H_

#include <string_view>

#include "absl/types/span.h"
#include "engine/cpu/kernel.h"
#include "engine/cuda/kernel.h"
#include "engine/ops/op.h"

namespace lockstep::engine {

struct OpEntry {
  const OpDef* op;
  const CpuKernelDef* cpu;    // null only for leaves and views
  const CudaKernelDef* cuda;  // the same
};

// The table, in a fixed order. Lives for ever.
absl::Span<const OpEntry> AllOps();
// Null when there is none.
const OpDef* FindOp(std::string_view name);
// REQUIRES: `op` is of the table and neither leaf nor view.
const CpuKernelDef& CpuKernelOf(const OpDef& op);
const CudaKernelDef& CudaKernelOf(const OpDef& op);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_REGISTRY_H_
