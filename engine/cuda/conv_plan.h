// SPDX-License-Identifier: Apache-2.0
// What a convolution's node does on a GPU, from its types alone: the scratch is planned with it.
// Thread-safety: values.
#ifndef LOCKSTEP_ENGINE_CUDA_CONV_PLAN_H_
#define LOCKSTEP_ENGINE_CUDA_CONV_PLAN_H_

#include <algorithm>

#include "engine/cuda/kernel.h"
#include "engine/cuda/kernels/types.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine::cuda {

// The result, or the gradient of the images or of the filters.
enum class ConvPart { kForward, kInput, kWeight };

struct ConvPlan {
  ConvPlan(const Graph& graph, const Node& node, ConvPart which);

  int64_t patch() const { return g.taps() * g.group_channels(); }
  // Of a row of the patches and of the filters beside them: rows of 16-bit numbers are whole 16
  // bytes, with zeros at their end, which is what the quickest products want.
  int64_t pitch() const { return pads ? (patch() + 7) / 8 * 8 : patch(); }
  int64_t pixels() const { return g.out_height * g.out_width; }
  // Images of the block that begins with `first`.
  int64_t ImagesFrom(int64_t first) const { return std::min(block, g.images - first); }
  // Of the way that is taken, whichever it is.
  size_t scratch_bytes() const {
    return std::max(filters_bytes + cast_bytes + matrix_bytes + result_bytes, implicit_bytes);
  }
  // Bytes that divide the address of every operand of the products.
  int Alignment(int operands) const;
  // The filters' extents: dense, and with a row for each filter as long as a patch's.
  FilterArgs filters() const;
  FilterArgs padded_filters() const;

  ConvPart part;
  ConvGeometry g;
  Type factors = Type::kF32;
  bool direct = false;   // the images are the patches
  bool pads = false;     // pitch() is larger than patch()
  bool in_fp32 = false;  // forward: the result goes through fp32 scratch
  int64_t block = 1;     // images
  // Of the scratch, in this order.
  size_t filters_bytes = 0;
  size_t cast_bytes = 0;  // of dy
  size_t matrix_bytes = 0;
  size_t result_bytes = 0;
  // Where tensor cores can do it without patches: all of the scratch.
  bool implicit = false;
  int64_t parts = 1;  // of the places, in the gradient of the filters
  size_t implicit_bytes = 0;

 private:
  void PlanImplicit(Type second, ConvPart which);
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CONV_PLAN_H_
