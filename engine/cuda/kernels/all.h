// SPDX-License-Identifier: Apache-2.0
// The launches that the module's table is made of (tables.h); one file of kernels for each family.
// Thread-safety: as the table.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

Code LaunchPointwise(const PointwiseArgs& args, Stream stream);
Code LaunchDropout(const DropoutArgs& args, Stream stream);
Code LaunchEpilogue(const EpilogueArgs& args, Stream stream);
Code LaunchTakeRows(const TakeRowsArgs& args, Stream stream);
Code LaunchTranspose(const TransposeArgs& args, Stream stream);
Code LaunchColumnSum(const ColumnSumArgs& args, Stream stream);
Code LaunchLayerNorm(const LayerNormArgs& args, Stream stream);
Code LaunchLayerNormBackwardInput(const LayerNormBackwardInputArgs& args, Stream stream);
Code LaunchLayerNormBackwardWeight(const LayerNormBackwardWeightArgs& args, Stream stream);
Code LaunchSoftmax(const SoftmaxArgs& args, Stream stream);
Code LaunchCrossEntropy(const CrossEntropyArgs& args, Stream stream);
Code LaunchEmbedding(const EmbeddingArgs& args, Stream stream);
Code LaunchEmbeddingBackward(const EmbeddingBackwardArgs& args, Stream stream);
Code LaunchPositions(const PositionsArgs& args, Stream stream);
Code LaunchPositionsBackward(const PositionsArgs& args, Stream stream);
Code LaunchAttention(const AttentionArgs& args, Stream stream);
Code LaunchAttentionBackward(const AttentionBackwardArgs& args, Stream stream);
Code LaunchAttentionStep(const AttentionStepArgs& args, Stream stream);
Code LaunchBatchNorm(const BatchNormArgs& args, Stream stream);
Code LaunchBatchNormBackward(const BatchNormBackwardArgs& args, Stream stream);
Code LaunchFold(const FoldArgs& args, Stream stream);
Code LaunchPool(const PoolArgs& args, Stream stream);
Code LaunchGlobalPool(const GlobalPoolArgs& args, Stream stream);
Code LaunchPatches(const PatchArgs& args, Stream stream);
Code LaunchFilters(const FilterArgs& args, Stream stream);
Code LaunchUpdate(const UpdateArgs& args, Stream stream);
Code LaunchSquares(const SquaresArgs& args, Stream stream);
Code LaunchNormalise(const NormaliseArgs& args, Stream stream);
Code LaunchMove(const MoveArgs& args, Stream stream);
Code LaunchStatistic(const StatisticArgs& args, Stream stream);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
