// SPDX-License-Identifier: Apache-2.0
// A graph of the fake cuDNN: its operations one after another, in plain loops.
// Thread-safety: values.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_GRAPH_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/emulation/fake_cudnn_shared.h"

namespace lockstep::fake_cudnn {

struct GraphTensor {
  int64_t id = 0;
  int type = 0;
  std::array<int64_t, 4> extents{}, strides{};
  bool between = false;  // it lies nowhere
};

struct GraphOperation {
  engine::cuda::CudnnKind kind{};
  int mode = 0;      // of arithmetic or a reduction
  int64_t axis = 0;  // of an index
  // Of a convolution, for both axes.
  std::array<int64_t, 2> padding{}, strides{}, dilations{};
  // x, b and t of arithmetic, a and b of a product, images and filters, or places, of a
  // convolution.
  std::vector<GraphTensor> from;
  GraphTensor to;
};

struct Graph {
  std::vector<GraphOperation> operations;
  int products() const;
};

// Returns whether extents fit each other.
bool Fits(const Graph& graph);
// Computes it as `algorithm` with arrays and scalars by number; switches may spoil the last
// product.
void Compute(const Graph& graph, int algorithm, const std::map<int64_t, void*>& arrays);

}  // namespace lockstep::fake_cudnn

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_GRAPH_H_
