// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_cudnn_graph.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/half.h"
#include "engine/cuda/cudnn_api.h"

namespace lockstep::fake_cudnn {
namespace {

using engine::cuda::CudnnKind;
using engine::cuda::CudnnPointwise;
using engine::cuda::CudnnReduction;
using Place = std::array<int64_t, 4>;

float Rounded(float x, int type) {
  if (type == engine::cuda::kCudnnBfloat16) return BFloat16::FromFloat(x).ToFloat();
  return type == engine::cuda::kCudnnHalf ? Float16::FromFloat(x).ToFloat() : x;
}

template <typename Visit>
void ForEachPlace(const Place& extents, const Visit& visit) {
  Place at{};
  for (at[0] = 0; at[0] < extents[0]; ++at[0]) {
    for (at[1] = 0; at[1] < extents[1]; ++at[1]) {
      for (at[2] = 0; at[2] < extents[2]; ++at[2]) {
        for (at[3] = 0; at[3] < extents[3]; ++at[3]) visit(at);
      }
    }
  }
}

// Extents of 1 are read again and again.
int64_t OffsetOf(const GraphTensor& tensor, const Place& at) {
  int64_t offset = 0;
  for (size_t i = 0; i < 4; ++i) offset += tensor.extents[i] == 1 ? 0 : at[i] * tensor.strides[i];
  return offset;
}

// Of a run.
struct Values {
  std::map<int64_t, void*> arrays;
  std::map<int64_t, std::vector<float>> between;

  float Read(const GraphTensor& tensor, const Place& at) {
    const int64_t offset = OffsetOf(tensor, at);
    if (tensor.between) return between[tensor.id][static_cast<size_t>(offset)];
    return Load(arrays.at(tensor.id), tensor.type, offset);
  }
  void Write(const GraphTensor& tensor, const Place& at, float x) {
    const int64_t offset = OffsetOf(tensor, at);
    if (!tensor.between) return Store(arrays.at(tensor.id), tensor.type, offset, x);
    std::vector<float>& values = between[tensor.id];
    if (values.size() <= static_cast<size_t>(offset))
      values.resize(static_cast<size_t>(offset) + 1);
    values[static_cast<size_t>(offset)] = Rounded(x, tensor.type);
  }
};

void Multiply(const GraphOperation& o, int algorithm, bool faulty, Values* values) {
  const GraphTensor &a = o.from[0], &b = o.from[1];
  const Place& e = o.to.extents;
  ForEachPlace(e, [&](const Place& at) {
    const bool last = at[0] + 1 == e[0] && at[1] + 1 == e[1] && at[2] + 1 == e[2];
    const int64_t terms = a.extents[3];
    float sum = 0;
    for (int64_t i = 0; i < terms; ++i) {
      const int64_t k = algorithm == kTurned ? terms - 1 - i : i;
      if (faulty && last && k == 0 && switches.leaves_one_out) continue;
      sum += values->Read(a, {at[0], at[1], at[2], k}) * values->Read(b, {at[0], at[1], k, at[3]});
    }
    if (faulty && switches.drifts) sum += static_cast<float>(switches.calls.size()) * 0x1p-5f;
    values->Write(o.to, at, sum);
  });
}

// Where a tap of a place looks at an image; false beside it.
bool LooksAt(const GraphOperation& o, const Place& image, int64_t i, int64_t j, int64_t r,
             int64_t s, int64_t* h, int64_t* w) {
  *h = i * o.strides[0] - o.padding[0] + r * o.dilations[0];
  *w = j * o.strides[1] - o.padding[1] + s * o.dilations[1];
  return *h >= 0 && *h < image[2] && *w >= 0 && *w < image[3];
}

// A sum of all products that `visit` gives the numbers and factors of, in the order of `algorithm`.
struct Sum {
  std::vector<float> terms;
  float In(int algorithm, bool leaves_one_out) const {
    float sum = 0;
    for (size_t i = 0; i < terms.size(); ++i) {
      const size_t k = algorithm == kTurned ? terms.size() - 1 - i : i;
      if (!leaves_one_out || k > 0) sum += terms[k];
    }
    if (leaves_one_out || algorithm != kPlain || !switches.drifts) return sum;
    return sum + static_cast<float>(switches.calls.size()) * 0x1p-5f;
  }
};

void Convolve(const GraphOperation& o, int algorithm, Values* values) {
  const GraphTensor &x = o.from[0], &f = o.from[1];
  const bool forward = o.kind == CudnnKind::kConvolutionOperation;
  const Place& e = o.to.extents;
  ForEachPlace(e, [&](const Place& at) {
    Sum sum;
    int64_t h = 0, w = 0;
    const auto add = [&](const Place& image, const Place& factor) {
      sum.terms.push_back(values->Read(x, image) * values->Read(f, factor));
    };
    const Place span = forward ? Place{1, f.extents[1], f.extents[2], f.extents[3]}
                               : Place{f.extents[0], 1, f.extents[2], f.extents[3]};
    ForEachPlace(span, [&](const Place& k) {
      if (forward) {
        if (!LooksAt(o, x.extents, at[2], at[3], k[2], k[3], &h, &w)) return;
        add({at[0], k[1], h, w}, {at[1], k[1], k[2], k[3]});
      } else {
        if (!LooksAt(o, x.extents, k[2], k[3], at[2], at[3], &h, &w)) return;
        add({k[0], at[1], h, w}, {k[0], at[0], k[2], k[3]});
      }
    });
    const bool last = at == Place{e[0] - 1, e[1] - 1, e[2] - 1, e[3] - 1};
    const bool spoils = last && algorithm == kPlain && switches.leaves_one_out;
    values->Write(o.to, at, sum.In(algorithm, spoils));
  });
}

bool IsConvolution(const GraphOperation& o) {
  return o.kind == CudnnKind::kConvolutionOperation ||
         o.kind == CudnnKind::kFilterGradientOperation;
}

float Apply(CudnnPointwise mode, float x, float b, float t) {
  switch (mode) {
    case CudnnPointwise::kAdd:
      return x + b;
    case CudnnPointwise::kMultiply:
      return x * b;
    case CudnnPointwise::kDivide:
      return x / b;
    case CudnnPointwise::kSubtract:
      return x - b;
    case CudnnPointwise::kExp:
      return std::exp(x);
    case CudnnPointwise::kLog:
      return std::log(x);
    case CudnnPointwise::kIdentity:
      return x;
    case CudnnPointwise::kRelu:
      return x > 0 ? x : 0;
    case CudnnPointwise::kNotLess:
      return x >= b ? 1 : 0;
    case CudnnPointwise::kSelect:
      return t != 0 ? x : b;
    case CudnnPointwise::kIndex:
      break;
  }
  std::abort();
}

void Arithmetic(const GraphOperation& o, Values* values) {
  const auto mode = static_cast<CudnnPointwise>(o.mode);
  ForEachPlace(o.to.extents, [&](const Place& at) {
    if (mode == CudnnPointwise::kIndex) {
      return values->Write(o.to, at, static_cast<float>(at[static_cast<size_t>(o.axis)]));
    }
    const auto read = [&](size_t i) { return o.from.size() > i ? values->Read(o.from[i], at) : 0; };
    values->Write(o.to, at, Apply(mode, read(0), read(1), read(2)));
  });
}

void Reduce(const GraphOperation& o, int algorithm, Values* values) {
  const int64_t terms = o.from[0].extents[3];
  ForEachPlace(o.to.extents, [&](const Place& at) {
    float all = 0;
    for (int64_t i = 0; i < terms; ++i) {
      const int64_t k = algorithm == kTurned ? terms - 1 - i : i;
      const float x = values->Read(o.from[0], {at[0], at[1], at[2], k});
      const bool most = o.mode == static_cast<int>(CudnnReduction::kMaximum);
      all = i == 0 ? x : most ? std::max(all, x) : all + x;
    }
    values->Write(o.to, at, all);
  });
}

// The same elements with other extents: those that lie at the same place.
void Reshape(const GraphOperation& o, Values* values) {
  ForEachPlace(o.to.extents, [&](const Place& at) {
    const Place turned = {at[0], at[1], at[3], at[2]};
    values->Write(o.to, at, values->Read(o.from[0], turned));
  });
}

}  // namespace

int Graph::products() const {
  return static_cast<int>(std::count_if(operations.begin(), operations.end(), [](const auto& o) {
    return o.kind == CudnnKind::kMatmulOperation || IsConvolution(o);
  }));
}

bool Fits(const Graph& graph) {
  for (const GraphOperation& o : graph.operations) {
    const Place &x = o.from[0].extents, &y = o.to.extents;
    if (o.kind == CudnnKind::kMatmulOperation) {
      const Place& b = o.from[1].extents;
      if (x[3] != b[2] || y[2] != x[2] || y[3] != b[3]) return false;
    } else if (o.kind == CudnnKind::kConvolutionOperation) {
      const Place& filters = o.from[1].extents;
      if (x[0] != y[0] || x[1] != filters[1] || y[1] != filters[0]) return false;
    } else if (o.kind == CudnnKind::kFilterGradientOperation) {
      const Place& places = o.from[1].extents;
      if (x[0] != places[0] || x[1] != y[1] || places[1] != y[0]) return false;
    } else if (o.kind == CudnnKind::kReshapeOperation) {
      if (x[2] != y[3] || x[3] != y[2] || o.from[0].strides[2] != o.to.strides[3]) return false;
    } else if (o.kind == CudnnKind::kPointwiseOperation) {
      for (const GraphTensor& from : o.from) {
        for (size_t i = 0; i < 4; ++i) {
          if (from.extents[i] != 1 && from.extents[i] != y[i]) return false;
        }
      }
    }
  }
  return true;
}

void Compute(const Graph& graph, int algorithm, const std::map<int64_t, void*>& arrays) {
  Values values{arrays, {}};
  int products = 0;
  for (const GraphOperation& o : graph.operations) {
    if (o.kind == CudnnKind::kMatmulOperation) {
      const bool last = ++products == graph.products();
      Multiply(o, algorithm, last && algorithm == kPlain, &values);
    } else if (IsConvolution(o)) {
      Convolve(o, algorithm, &values);
    } else if (o.kind == CudnnKind::kPointwiseOperation) {
      Arithmetic(o, &values);
    } else if (o.kind == CudnnKind::kReductionOperation) {
      Reduce(o, algorithm, &values);
    } else {
      Reshape(o, &values);
    }
  }
}

}  // namespace lockstep::fake_cudnn
