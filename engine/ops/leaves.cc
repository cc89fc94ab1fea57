// SPDX-License-Identifier: Apache-2.0
// Leaves: values that the executor binds to memory.
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {

const OpDef kInput = {
    .name = "input",
    .doc = "a value of the run: \"inputs\", \"labels\", \"loss_seed\"",
    .leaf = true,
    .no_gradient = "a leaf",
};

const OpDef kParameter = {
    .name = "parameter",
    .doc = "an entry of the state table, by its name; fixed during the run",
    .leaf = true,
    .no_gradient = "a leaf: its gradient is an output of the graph",
};

}  // namespace lockstep::engine::ops
