// SPDX-License-Identifier: Apache-2.0
// Where a plan's step goes: each node's kernel timed by itself, in the order of the plan.
// Thread-safety: as the executor's.
#ifndef LOCKSTEP_BENCH_NODE_TIMES_H_
#define LOCKSTEP_BENCH_NODE_TIMES_H_

#include "engine/exec/plan.h"

namespace lockstep::bench {

// Runs the training program of `plan` (an inference plan: the evaluation) `runs` times on
// initialised `state`, with `arena` of plan.arena_bytes(), and prints the median of each node's
// times: a row for each op and shape, the most expensive first (`each`: a row for each node, in
// order), and below them what all take and would take at this machine's limits: each at `peak`
// operations per second or at the bandwidth of memory, whichever is longer (one thread). What stays
// in a cache from one node to the next may be quicker.
void PrintNodeTimes(const engine::CompiledPlan& plan, void* state, void* arena,
                    engine::Fields fields, int runs, double peak, bool each);

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_NODE_TIMES_H_
