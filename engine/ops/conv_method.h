// SPDX-License-Identifier: Apache-2.0
// By which method a CPU computes a convolution. Methods add in other orders, so this is part of
// what the op is: a rule on its shape alone (docs/same_bits.md). What neither takes is a matrix
// product. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_
#define LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_

#include "engine/ops/conv_geometry.h"

namespace lockstep::engine {

// Returns whether a convolution and its gradients are done by Winograd's F(2x2, 3x3).
bool IsForWinograd(const ConvGeometry& g);

// Returns whether a pooled convolution and its weight gradient are done tap by tap.
bool IsForDirect(const ConvGeometry& g);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_CONV_METHOD_H_
