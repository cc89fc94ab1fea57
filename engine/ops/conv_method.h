// SPDX-License-Identifier: Apache-2.0
// By which method a CPU computes a convolution, and by how many images at a time a weight gradient
// of widened operands. Methods and cuts add in other orders, so this is part of what the op is: a
// rule on its shape alone (docs/same_bits.md). What neither method takes is a matrix product.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_
#define LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_

#include <cstdint>

#include "engine/ops/conv_geometry.h"

namespace lockstep::engine {

// Returns whether a convolution and its gradients are done by Winograd's F(2x2, 3x3).
bool IsForWinograd(const ConvGeometry& g);

// Returns whether a pooled convolution and its weight gradient are done tap by tap.
bool IsForDirect(const ConvGeometry& g);

// Returns of how many of `images` a weight gradient is one sum, which is then added to that of the
// images before, where operands in 16 bits are widened first. Of these an image has `values` in all
// operands together, and `pixels` in the operand with the most.
int64_t SummedImages(int64_t images, int64_t values, int64_t pixels);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_
