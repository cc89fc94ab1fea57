// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/kernels.h"

#include "common/check.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

struct CpuEntry {
  const OpDef* op;
  const CpuKernelDef* kernel;
};
constexpr CpuEntry kCpuKernels[] = {
#define LOCKSTEP_OP(Name) {&ops::k##Name, &cpu::k##Name},
#define LOCKSTEP_POINTWISE(Name) {&ops::k##Name, &cpu::k##Name},
#define LOCKSTEP_CPU_OP(Name) {&ops::k##Name, &cpu::k##Name},
#define LOCKSTEP_PLAIN_OP(Name)
#include "engine/ops/op_list.inc"
};

}  // namespace

const CpuKernelDef* FindCpuKernel(const OpDef& op) {
  for (const CpuEntry& entry : kCpuKernels) {
    if (entry.op == &op) return entry.kernel;
  }
  return nullptr;
}

const CpuKernelDef& CpuKernelOf(const OpDef& op) {
  const CpuKernelDef* const kernel = FindCpuKernel(op);
  LS_CHECK(kernel != nullptr) << op.name;
  return *kernel;
}

}  // namespace lockstep::engine
