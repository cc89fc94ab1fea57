// SPDX-License-Identifier: Apache-2.0
// Who gets what in a step with train.zero_stage: 1 in which no rank reads another's memory, because
// vectors lie in that of GPUs or ranks on several hosts (docs/adr/0011): reduced gradients go to
// the ranks that hold their moments, each block's sum of squares is made by one rank, and new
// weights come from one holder. All ranks compute the same from the same arguments. Thread-safety:
// pure functions.
#ifndef LOCKSTEP_WORKER_STATE_SPREAD_DEAL_H_
#define LOCKSTEP_WORKER_STATE_SPREAD_DEAL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "engine/engine.h"
#include "worker/state/shard_holders.h"

namespace lockstep::worker {

struct GradientDeal {
  // By block of Plan::SumBlocks: the rank that sums its squares.
  std::vector<int> summed_by;
  // By rank: TreeReduceArgs::wanted. What a rank holds, the blocks that it sums, and what follows
  // the gradients of parameters (statistics, losses, the step header).
  std::vector<std::vector<ElementRange>> wanted;
};

// Of `blocks` (Plan::SumBlocks) of a plan with `gradient_count` elements, those from `tail_begin`
// (Plan::TailBegin) on being everybody's, which `vector_count` are reduced with, to `world` ranks.
// REQUIRES: every shard has a holder.
GradientDeal DealGradients(absl::Span<const engine::GradientRange> blocks, int64_t tail_begin,
                           int64_t gradient_count, int64_t vector_count,
                           const ShardHolders& holders, int world);

// Every shard's new weights from its holders to those of `takers` who do not hold it. `hosts` are
// those of the ranks (Communicator::hosts).
std::vector<RangeTransfer> WeightTransfers(int64_t gradient_count, const ShardHolders& holders,
                                           const std::vector<int>& takers,
                                           absl::Span<const int> hosts);

// Of `holders`, who gives something to `taker`: one on its host where there is one, else whose
// `turn` it is.
int GiverTo(int taker, const std::vector<int>& holders, size_t turn, absl::Span<const int> hosts);

// Appends what brings `range`, which `holders` have, to those of `takers` who do not.
void AddTransfers(ElementRange range, const std::vector<int>& holders, size_t turn,
                  const std::vector<int>& takers, absl::Span<const int> hosts,
                  std::vector<RangeTransfer>* transfers);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_SPREAD_DEAL_H_
