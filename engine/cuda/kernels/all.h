// SPDX-License-Identifier: Apache-2.0
// The launches that the module's table is made of (tables.h); one file of kernels for each family.
// Thread-safety: as the table.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_

#include "engine/cuda/kernels/types.h"
#include "engine/cuda/kernels/update_types.h"

namespace lockstep::engine::cuda {

// Launches kernels on `stream`; waits for nothing. 0, or CUDA's error.
template <typename Args>
using Launcher = Code(const Args& args, Stream stream);

Launcher<PointwiseArgs> LaunchPointwise;
Launcher<QuantizeArgs> LaunchQuantize;
Launcher<PackFp8Args> LaunchPackFp8;
Launcher<DropoutArgs> LaunchDropout;
Launcher<EpilogueArgs> LaunchEpilogue;
Launcher<TakeRowsArgs> LaunchTakeRows;
Launcher<TransposeArgs> LaunchTranspose;
Launcher<ColumnSumArgs> LaunchColumnSum;
Launcher<LayerNormArgs> LaunchLayerNorm;
Launcher<LayerNormBackwardInputArgs> LaunchLayerNormBackwardInput;
Launcher<LayerNormBackwardWeightArgs> LaunchLayerNormBackwardWeight;
Launcher<SoftmaxArgs> LaunchSoftmax;
Launcher<CrossEntropyArgs> LaunchCrossEntropy;
Launcher<EmbeddingArgs> LaunchEmbedding;
Launcher<EmbeddingBackwardArgs> LaunchEmbeddingBackward;
Launcher<PositionsArgs> LaunchPositions;
Launcher<PositionsArgs> LaunchPositionsBackward;
Launcher<AttentionArgs> LaunchAttention;
Launcher<AttentionBackwardArgs> LaunchAttentionBackward;
Launcher<AttentionStepArgs> LaunchAttentionStep;
// On tensor cores, where they can: 16-bit factors of one type, in rows that move 16 bytes at once.
bool AttentionFitsTensorCores(const AttentionArgs& args);
bool AttentionBackwardFitsTensorCores(const AttentionBackwardArgs& args);
Launcher<AttentionArgs> LaunchMatrixAttention;
// REQUIRES: args.delta is made.
Launcher<AttentionBackwardArgs> LaunchMatrixAttentionBackward;
Launcher<BatchNormArgs> LaunchBatchNorm;
Launcher<BatchNormBackwardArgs> LaunchBatchNormBackward;
Launcher<FoldArgs> LaunchFold;
Launcher<PoolArgs> LaunchPool;
Launcher<PlacePoolArgs> LaunchPlacePool;
Launcher<UnpoolArgs> LaunchUnpool;
Launcher<GlobalPoolArgs> LaunchGlobalPool;
Launcher<PatchArgs> LaunchPatches;
Launcher<FilterArgs> LaunchFilters;
Launcher<ImplicitArgs> LaunchImplicit;
Launcher<ImplicitWeightArgs> LaunchImplicitWeight;
Launcher<UpdateArgs> LaunchUpdate;
Launcher<SquaresArgs> LaunchSquares;
Launcher<DecideArgs> LaunchDecide;
Launcher<NormaliseArgs> LaunchNormalise;
Launcher<MoveArgs> LaunchMove;
Launcher<StatisticArgs> LaunchStatistic;
Launcher<AddVectorsArgs> LaunchAddVectors;
Launcher<FillArgs> LaunchFill;

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
