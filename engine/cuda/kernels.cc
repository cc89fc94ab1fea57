// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/kernels.h"

#include "common/check.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

struct CudaEntry {
  const OpDef* op;
  const CudaKernelDef* kernel;
};
constexpr CudaEntry kCudaKernels[] = {
#define LOCKSTEP_OP(Name) {&ops::k##Name, &cuda::k##Name},
#define LOCKSTEP_POINTWISE(Name) {&ops::k##Name, &cuda::k##Name},
#define LOCKSTEP_CPU_OP(Name)
#define LOCKSTEP_PLAIN_OP(Name)
#include "engine/ops/op_list.inc"
};

}  // namespace

const CudaKernelDef* FindCudaKernel(const OpDef& op) {
  for (const CudaEntry& entry : kCudaKernels) {
    if (entry.op == &op) return entry.kernel;
  }
  return nullptr;
}

const CudaKernelDef& CudaKernelOf(const OpDef& op) {
  const CudaKernelDef* const kernel = FindCudaKernel(op);
  LS_CHECK(kernel != nullptr) << op.name;
  return *kernel;
}

}  // namespace lockstep::engine
