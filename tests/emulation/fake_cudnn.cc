// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "common/half.h"
#include "engine/cuda/cudnn_api.h"
#include "tests/emulation/fake_cudnn_shared.h"

namespace lockstep::fake_cudnn {

Switches switches;

namespace {

using engine::cuda::CudnnFound;
using engine::cuda::CudnnObject;
using engine::cuda::CudnnStatus;

constexpr int kAlgorithms = 5;

struct Handle {
  void* stream = nullptr;
};
// A tensor [n, c, h, w] or a filter [o, c, kh, kw], channels last.
struct Extents {
  int type = 0;
  int64_t n = 0, c = 0, h = 0, w = 0;
  int64_t At(int64_t i, int64_t row, int64_t column, int64_t channel) const {
    return ((i * h + row) * w + column) * c + channel;
  }
};
struct Convolution {
  std::array<int64_t, 2> pad{}, stride{}, dilation{};
  int groups = 1;
  int math = 0;
};

template <typename T>
CudnnStatus Make(CudnnObject* object) {
  *object = new T;
  ++switches.descriptors;
  return 0;
}
template <typename T>
CudnnStatus Remove(CudnnObject object) {
  delete static_cast<T*>(object);
  --switches.descriptors;
  return 0;
}

// One convolution whose images, filters and places are told apart.
struct Work {
  int direction = 0;
  int algorithm = 0;
  Convolution convolution;
  Extents images, filters, places;
  const void* first = nullptr;
  const void* second = nullptr;
  void* result = nullptr;

  const Extents& result_extents() const {
    return direction == 0 ? places : direction == 1 ? images : filters;
  }
};

// Calls visit(element of x, of w, of y) for each product.
template <typename Visit>
void ForEachProduct(const Work& work, const Visit& visit) {
  const Extents &x = work.images, &w = work.filters, &y = work.places;
  const Convolution& c = work.convolution;
  const int64_t group_filters = w.n / c.groups;
  for (int64_t image = 0; image < y.n; ++image) {
    for (int64_t p = 0; p < y.h * y.w; ++p) {
      for (int64_t o = 0; o < w.n; ++o) {
        const int64_t from = o / group_filters * w.c;
        const int64_t out = y.At(image, p / y.w, p % y.w, o);
        for (int64_t tap = 0; tap < w.h * w.w; ++tap) {
          const int64_t row = p / y.w * c.stride[0] - c.pad[0] + tap / w.w * c.dilation[0];
          const int64_t column = p % y.w * c.stride[1] - c.pad[1] + tap % w.w * c.dilation[1];
          if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
          for (int64_t k = 0; k < w.c; ++k) {
            visit(x.At(image, row, column, from + k), w.At(o, tap / w.w, tap % w.w, k), out);
          }
        }
      }
    }
  }
}

void Do(const Work& work) {
  const Extents& to = work.result_extents();
  const int type = to.type;
  switches.calls.push_back(
      {work.direction, work.algorithm, work.convolution.groups, type, work.convolution.math});
  if (switches.spend) {
    switches.spend(switches.milliseconds * (work.algorithm == kTurned ? 2 : 1));
  }
  std::vector<float> sums(static_cast<size_t>(to.n * to.h * to.w * to.c));
  const bool faulty = work.algorithm == kPlain && switches.leaves_one_out;
  bool left_out = !faulty;
  std::vector<std::pair<size_t, float>> products;
  ForEachProduct(work, [&](int64_t x, int64_t w, int64_t y) {
    const int64_t first = work.direction == 1 ? w : x;
    const int64_t second = work.direction == 0 ? w : y;
    const int64_t result = work.direction == 0 ? y : work.direction == 1 ? x : w;
    products.emplace_back(static_cast<size_t>(result),
                          Load(work.first, type, first) * Load(work.second, type, second));
  });
  if (work.algorithm == kTurned) std::reverse(products.begin(), products.end());
  for (const auto& [at, product] : products) {
    const bool skip = !left_out && at + 1 == sums.size();
    left_out = left_out || skip;
    if (!skip) sums[at] += product;
  }
  if (work.algorithm == kPlain && switches.drifts) {
    sums[0] += static_cast<float>(switches.calls.size()) * 0x1p-20f;
  }
  for (size_t i = 0; i < sums.size(); ++i)
    Store(work.result, type, static_cast<int64_t>(i), sums[i]);
}

Work Describe(int direction, CudnnObject first, CudnnObject second, CudnnObject convolution,
              CudnnObject result) {
  const auto extents = [](CudnnObject object) { return *static_cast<Extents*>(object); };
  Work work;
  work.direction = direction;
  work.convolution = *static_cast<Convolution*>(convolution);
  work.images = extents(direction == 1 ? result : first);
  work.filters = extents(direction == 0 ? second : direction == 1 ? first : result);
  work.places = extents(direction == 0 ? result : second);
  return work;
}

CudnnStatus Check(const Work& work) {
  const Extents &x = work.images, &w = work.filters, &y = work.places;
  const Convolution& c = work.convolution;
  const auto places = [&](int64_t extent, int64_t kernel, size_t axis) {
    return (extent + 2 * c.pad[axis] - c.dilation[axis] * (kernel - 1) - 1) / c.stride[axis] + 1;
  };
  const bool fits = x.n == y.n && w.n == y.c && w.c * c.groups == x.c &&
                    y.h == places(x.h, w.h, 0) && y.w == places(x.w, w.w, 1) && x.type == w.type &&
                    w.type == y.type;
  return fits ? 0 : kBadParam;
}

template <int kDirection>
CudnnStatus Find(CudnnObject, CudnnObject first, CudnnObject second, CudnnObject convolution,
                 CudnnObject result, int wanted, int* count, CudnnFound* found) {
  if (Check(Describe(kDirection, first, second, convolution, result)) != 0) return kBadParam;
  if (switches.find_status != 0) return switches.find_status;
  *count = std::min(wanted, kAlgorithms + 1);
  for (int i = 0; i < *count; ++i) {
    const int algorithm = i % kAlgorithms;  // the first comes twice
    found[i] = {};
    found[i].algorithm = algorithm;
    found[i].status = algorithm == kUnsupported ? kNotSupported : 0;
    found[i].determinism = algorithm == kNotDeterministic ? 0 : 1;
    found[i].workspace_bytes = algorithm == kLarge ? kTooLarge : switches.workspace_bytes;
  }
  return 0;
}

template <int kDirection>
CudnnStatus WorkspaceSize(CudnnObject, CudnnObject first, CudnnObject second,
                          CudnnObject convolution, CudnnObject result, int algorithm,
                          size_t* bytes) {
  if (algorithm < 0 || algorithm >= kUnsupported || algorithm == switches.missing) {
    return kNotSupported;
  }
  *bytes = algorithm == kLarge ? kTooLarge : switches.workspace_bytes;
  return Check(Describe(kDirection, first, second, convolution, result));
}

template <int kDirection>
CudnnStatus RunOne(CudnnObject handle, const void* alpha, CudnnObject first, const void* first_data,
                   CudnnObject second, const void* second_data, CudnnObject convolution,
                   int algorithm, void* workspace, size_t workspace_bytes, const void* beta,
                   CudnnObject result, void* result_data) {
  Work work = Describe(kDirection, first, second, convolution, result);
  const CudnnStatus status = Check(work);
  if (status != 0) return status;
  if (algorithm == kPlain && switches.run_status != 0) return switches.run_status;
  const bool plain =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  if (!plain || workspace == nullptr || workspace_bytes < switches.workspace_bytes)
    return kBadParam;
  work.algorithm = algorithm;
  work.first = first_data;
  work.second = second_data;
  work.result = result_data;
  return Enqueue(handle, workspace, [work] { Do(work); });
}

CudnnStatus SetExtents(CudnnObject object, int format, const Extents& extents) {
  if (format != engine::cuda::kCudnnChannelsLast) return kNotSupported;
  *static_cast<Extents*>(object) = extents;
  return 0;
}

}  // namespace

float Load(const void* data, int type, int64_t i) {
  if (type == engine::cuda::kCudnnFloat) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == engine::cuda::kCudnnBfloat16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}
void Store(void* data, int type, int64_t i, float x) {
  if (type == engine::cuda::kCudnnFloat) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<uint16_t*>(data)[i] = type == engine::cuda::kCudnnBfloat16
                                          ? BFloat16::FromFloat(x).bits
                                          : Float16::FromFloat(x).bits;
  }
}

namespace {

CudnnStatus ModuleDoes(void* stream, const std::function<void()>& work) {
  const char* const path = std::getenv("LOCKSTEP_CUDA_MODULE");
  void* const module = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (module == nullptr) return kNotInitialized;
  const auto give = reinterpret_cast<int (*)(void*, const std::function<void()>&)>(
      ::dlsym(module, "lockstep_emulated_do"));
  return give == nullptr ? kNotInitialized : give(stream, work);
}

}  // namespace

CudnnStatus Enqueue(CudnnObject handle, void* workspace, const std::function<void()>& work) {
  const auto run = [work, workspace, bytes = switches.workspace_bytes] {
    std::fill_n(static_cast<unsigned char*>(workspace), bytes, static_cast<unsigned char>(0xA5));
    work();
  };
  void* const stream = static_cast<Handle*>(handle)->stream;
  return switches.enqueue ? switches.enqueue(stream, run) : ModuleDoes(stream, run);
}

}  // namespace lockstep::fake_cudnn

namespace fake = lockstep::fake_cudnn;
using lockstep::engine::cuda::CudnnFound;

extern "C" {

fake::Switches* lockstep_fake_cudnn() { return &fake::switches; }

size_t cudnnGetVersion() { return fake::switches.version; }
const char* cudnnGetErrorString(int) { return "the fake cuDNN's error"; }
int cudnnCreate(void** handle) {
  if (fake::switches.create_status != 0) return fake::switches.create_status;
  *handle = new fake::Handle;
  ++fake::switches.handles;
  return 0;
}
int cudnnDestroy(void* handle) {
  delete static_cast<fake::Handle*>(handle);
  --fake::switches.handles;
  return 0;
}
int cudnnSetStream(void* handle, void* stream) {
  static_cast<fake::Handle*>(handle)->stream = stream;
  return 0;
}

int cudnnCreateTensorDescriptor(void** object) { return fake::Make<fake::Extents>(object); }
int cudnnDestroyTensorDescriptor(void* object) { return fake::Remove<fake::Extents>(object); }
int cudnnSetTensor4dDescriptor(void* object, int format, int type, int n, int c, int h, int w) {
  return fake::SetExtents(object, format, {type, n, c, h, w});
}
int cudnnCreateFilterDescriptor(void** object) { return fake::Make<fake::Extents>(object); }
int cudnnDestroyFilterDescriptor(void* object) { return fake::Remove<fake::Extents>(object); }
int cudnnSetFilter4dDescriptor(void* object, int type, int format, int n, int c, int h, int w) {
  return fake::SetExtents(object, format, {type, n, c, h, w});
}
int cudnnCreateConvolutionDescriptor(void** object) {
  return fake::Make<fake::Convolution>(object);
}
int cudnnDestroyConvolutionDescriptor(void* object) {
  return fake::Remove<fake::Convolution>(object);
}
int cudnnSetConvolution2dDescriptor(void* object, int pad_h, int pad_w, int u, int v,
                                    int dilation_h, int dilation_w, int mode, int compute_type) {
  // Cross-correlation with fp32 sums.
  if (mode != 1 || compute_type != 0) return fake::kNotSupported;
  auto* made = static_cast<fake::Convolution*>(object);
  made->pad = {pad_h, pad_w};
  made->stride = {u, v};
  made->dilation = {dilation_h, dilation_w};
  return 0;
}
int cudnnSetConvolutionGroupCount(void* object, int groups) {
  static_cast<fake::Convolution*>(object)->groups = groups;
  return 0;
}
int cudnnSetConvolutionMathType(void* object, int math) {
  static_cast<fake::Convolution*>(object)->math = math;
  return 0;
}

#define FAKE_DIRECTION(name, number)                                                               \
  int cudnnGetConvolution##name##Algorithm_v7(void* handle, void* first, void* second,             \
                                              void* convolution, void* result, int wanted,         \
                                              int* count, CudnnFound* found) {                     \
    return fake::Find<number>(handle, first, second, convolution, result, wanted, count, found);   \
  }                                                                                                \
  int cudnnGetConvolution##name##WorkspaceSize(void* handle, void* first, void* second,            \
                                               void* convolution, void* result, int algorithm,     \
                                               size_t* bytes) {                                    \
    return fake::WorkspaceSize<number>(handle, first, second, convolution, result, algorithm,      \
                                       bytes);                                                     \
  }                                                                                                \
  int cudnnConvolution##name(void* handle, const void* alpha, void* first, const void* first_data, \
                             void* second, const void* second_data, void* convolution,             \
                             int algorithm, void* workspace, size_t bytes, const void* beta,       \
                             void* result, void* result_data) {                                    \
    return fake::RunOne<number>(handle, alpha, first, first_data, second, second_data,             \
                                convolution, algorithm, workspace, bytes, beta, result,            \
                                result_data);                                                      \
  }
FAKE_DIRECTION(Forward, 0)
FAKE_DIRECTION(BackwardData, 1)
FAKE_DIRECTION(BackwardFilter, 2)

}  // extern "C"
