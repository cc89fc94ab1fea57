// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ops/run_cuda_node.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "common/check.h"
#include "common/half.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/module.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine {
namespace {

// Device memory of one value, `shift` elements off its alignment, with canaries around it.
class Buffer {
 public:
  Buffer(const Gpu& gpu, const TensorType& type, size_t bytes, size_t shift)
      : gpu_(gpu),
        type_(type),
        bytes_(bytes),
        words_(bytes / 2 + shift * SizeOf(type.dtype) / 2 + 2 * kBorder, kCanary) {
    first_ = kBorder + shift * SizeOf(type.dtype) / 2;
    gpu_.Check(gpu_.tables->runtime->allocate(words_.size() * 2, &device_), "allocate");
  }
  ~Buffer() { gpu_.tables->runtime->release(device_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Storage storage() const {
    return {Region::kAbsolute, reinterpret_cast<size_t>(device_) + first_ * 2};
  }
  void Set(const Doubles& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (type_.dtype == DType::kBF16) {
        Put(i, BFloat16::FromFloat(value).bits);
      } else if (type_.dtype == DType::kF16) {
        Put(i, Float16::FromFloat(value).bits);
      } else if (type_.dtype == DType::kI32) {
        Put(i, static_cast<int32_t>(values[i]));
      } else {
        Put(i, value);
      }
    }
  }
  void Upload() { gpu_.Copy(device_, words_.data(), words_.size() * 2); }
  // Brings the memory back; false when a canary is dead.
  bool Download() {
    gpu_.Copy(words_.data(), device_, words_.size() * 2);
    for (size_t i = 0; i < words_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + bytes_ / 2;
      if (!inside && words_[i] != kCanary) return false;
    }
    return true;
  }
  Doubles Get() const {
    Doubles values;
    for (int64_t i = 0; i < type_.elements(); ++i) values.push_back(At(static_cast<size_t>(i)));
    return values;
  }

 private:
  static constexpr uint16_t kCanary = 0x7FDE;
#ifdef LOCKSTEP_SANITIZE_ADDRESS
  static constexpr size_t kBorder = 0;  // it watches the borders itself, reads too
#else
  static constexpr size_t kBorder = 128;
#endif
  template <typename T>
  void Put(size_t i, T value) {
    std::memcpy(reinterpret_cast<char*>(words_.data() + first_) + i * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  T Take(size_t i) const {
    T value;
    const auto* from = reinterpret_cast<const char*>(words_.data() + first_) + i * sizeof(T);
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  double At(size_t i) const {
    if (type_.dtype == DType::kBF16) {
      return static_cast<double>(BFloat16{Take<uint16_t>(i)}.ToFloat());
    }
    if (type_.dtype == DType::kF16)
      return static_cast<double>(Float16{Take<uint16_t>(i)}.ToFloat());
    if (type_.dtype == DType::kF64) return Take<double>(i);
    if (type_.dtype == DType::kI32) return static_cast<double>(Take<int32_t>(i));
    return static_cast<double>(Take<float>(i));
  }

  const Gpu& gpu_;
  const TensorType type_;
  const size_t bytes_;
  std::vector<uint16_t> words_;
  size_t first_ = 0;
  void* device_ = nullptr;
};

}  // namespace

Gpu::Gpu(const cuda::Tables* tables, bool warpgroups) : tables(tables), warpgroups(warpgroups) {
  Check(tables->runtime->set_device(0), "set_device");
  const absl::Status loaded = cuda::LoadMatmul(*tables);  // for this device: it is current now
  LS_CHECK(loaded.ok()) << loaded;
  Check(tables->runtime->create_stream(&stream), "create_stream");
  Check(tables->runtime->allocate(kCudaWorkspaceBytes, &workspace), "allocate");
}
void Gpu::Check(cuda::Code code, const char* what) const {
  const absl::Status status = cuda::StatusOf(*tables, code, what);
  LS_CHECK(status.ok()) << status;
}
void Gpu::Copy(void* to, const void* from, size_t bytes) const {
  Check(tables->runtime->copy(to, from, bytes, stream), "copy");
  Check(tables->runtime->wait_stream(stream), "a kernel");
}

const Gpu& Emulated() {
  static const Gpu* const gpu = new Gpu(cuda::EmulatedTables(), false);
  return *gpu;
}
const Gpu& EmulatedWarpgroups() {
  static const Gpu* const gpu = new Gpu(cuda::EmulatedTables(), true);
  return *gpu;
}
const Gpu* Real() {
  static const Gpu* const gpu = [] {
    const auto devices = cuda::ListDevices();
    const bool asked = std::getenv("LOCKSTEP_TEST_GPU") != nullptr;
    LS_CHECK(devices.ok() || !asked) << devices.status();
    if (!devices.ok()) return static_cast<Gpu*>(nullptr);
    const cuda::Tables* const tables = *cuda::LoadModule();
    return new Gpu(tables, cuda::HasWarpgroups(*tables, (*devices)[0]));
  }();
  return gpu;
}

std::vector<Doubles> RunNode(const Gpu& gpu, const Prepared& p, const RunOptions& options) {
  const Node& node = p.graph.node(p.made.node);
  if (node.op->view) return {p.inputs[0]};
  const CudaKernelDef& def = CudaKernelOf(*node.op);
  std::vector<std::unique_ptr<Buffer>> in, out;
  KernelOperands operands;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const TensorType& type = p.graph.type(node.inputs[i]);
    in.push_back(std::make_unique<Buffer>(gpu, type, type.bytes(), options.shift));
    in.back()->Set(p.inputs[i]);
    in.back()->Upload();
    operands.inputs.push_back(in.back()->storage());
  }
  for (const TensorType& type : node.outputs) {
    out.push_back(std::make_unique<Buffer>(gpu, type, type.bytes(), options.shift));
    if (options.accumulate) out.back()->Set(Doubles(static_cast<size_t>(type.elements()), 1));
    out.back()->Upload();
    operands.outputs.push_back(out.back()->storage());
    if (options.accumulate)
      operands.outputs.back().region = Region::kGradients;  // its base is null here
  }
  const size_t scratch_bytes = def.scratch_bytes == nullptr ? 0 : def.scratch_bytes(p.graph, node);
  Buffer scratch(gpu, {}, scratch_bytes, 0);
  scratch.Upload();
  operands.scratch = scratch.storage();
  CudaContext context;
  context.accumulate = options.accumulate;
  context.stream = gpu.stream;
  context.workspace = gpu.workspace;
  const auto kernel =
      def.prepare(p.graph, node, operands,
                  {.tables = gpu.tables, .fp8 = options.fp8, .warpgroups = gpu.warpgroups});
  LS_CHECK(kernel.ok()) << kernel.status();
  gpu.Check((*kernel)(context), node.op->name);
  std::vector<Doubles> results;
  for (const auto& buffer : out) {
    EXPECT_TRUE(buffer->Download()) << node.op->name << " writes beyond its output";
    results.push_back(buffer->Get());
  }
  EXPECT_TRUE(scratch.Download()) << node.op->name << " writes beyond its scratch";
  return results;
}

std::vector<uint64_t> Bits(const std::vector<Doubles>& values) {
  std::vector<uint64_t> bits;
  for (const Doubles& output : values) {
    for (const double x : output) bits.push_back(std::bit_cast<uint64_t>(x));
  }
  return bits;
}

bool RoundsTheProduct(const OpCase& test) {
  return test.attrs.Int("keep") != 0 || test.attrs.String("third") == "gelu_tanh";
}

double InnerRounding(const OpDef& op, const OpCase& test, DType type,
                     const std::vector<Doubles>& expected) {
  const std::string name = op.name;
  const bool attention = name == "attention" || name == "attention_backward";
  if (!attention && !RoundsTheProduct(test)) return 0;
  const size_t first = name == "attention" ? 0 : 3;  // of q, k and v
  for (size_t i = 0; attention && i < test.inputs.size(); ++i) {
    if (test.inputs[i].dtype == DType::kF32 && (i == 0 || i >= first)) return 0;
  }
  double most = 1;
  for (const Doubles& output : expected) {
    for (const double x : output) most = std::max(most, std::fabs(x));
  }
  return most * (type == DType::kBF16 ? 0x1p-8 : 0x1p-11);
}

}  // namespace lockstep::engine
