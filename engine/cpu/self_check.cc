// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/self_check.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "engine/cpu/arch.h"
#include "engine/cpu/kernel_comparison.h"

namespace lockstep::engine {
namespace {

constexpr size_t kInputs = 4096;
constexpr size_t kResults = 8192;

}  // namespace

bool SameBits(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<float> MadeValues(uint64_t site, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = UniformFloat(static_cast<uint32_t>(MixBits(site * kResults + i))) * 4 - 2;
  }
  return values;
}

KernelComparison::KernelComparison(const KernelTables& tables)
    : tables_(tables),
      portable_(TablesFor(Isa::kPortable)),
      x_(MadeValues(1, kInputs)),
      y_(MadeValues(2, kInputs)),
      z_(MadeValues(3, kInputs)),
      before_(MadeValues(4, kResults)),
      positive_(MadeValues(5, kInputs)) {
  for (float& value : positive_) value = std::fabs(value) + 0.01f;
}

void KernelComparison::Run(const std::string& kernel,
                           absl::FunctionRef<void(const KernelTables&, float*)> run) {
  if (!wrong_.empty()) return;
  results_ = expected_ = before_;
  run(tables_, results_.data());
  run(portable_, expected_.data());
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!SameBits(results_[i], expected_[i])) return Fail(kernel);
  }
}

void KernelComparison::Fail(const std::string& kernel) {
  if (wrong_.empty()) wrong_ = kernel;
}

KernelTables TablesFor(Isa isa) {
  return {&SimdFor(isa), &RowKernelsFor(isa), &OptimKernelsFor(isa), &ImageSimdFor(isa),
          &HalfKernelsFor(isa)};
}

std::string FirstWrongKernel(const KernelTables& tables) {
  KernelComparison compare(tables);
  for (const auto check :
       {CheckProducts, CheckRowKernels, CheckOptimKernels, CheckImageKernels, CheckHalfKernels}) {
    check(&compare);
    if (!compare.wrong().empty()) break;
  }
  return compare.wrong();
}

Isa HighestSound(Isa best, absl::FunctionRef<KernelTables(Isa)> tables,
                 absl::FunctionRef<void(const std::string&)> warn) {
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2}) {
    if (isa > best) continue;
    const std::string wrong = FirstWrongKernel(tables(isa));
    if (wrong.empty()) return isa;
    warn(absl::StrCat("the kernels for ", Name(isa), " are not used: ", wrong,
                      " gives wrong results on this CPU (", CpuName(), ")"));
  }
  return Isa::kPortable;
}

}  // namespace lockstep::engine
