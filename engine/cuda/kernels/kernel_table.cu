// SPDX-License-Identifier: Apache-2.0
// The table of all kernels.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/runtime.h"

namespace lockstep::engine::cuda {

const Kernels kKernels = {
    .pointwise = LaunchPointwise,
    .quantize = LaunchQuantize,
    .pack_fp8 = LaunchPackFp8,
    .dropout = LaunchDropout,
    .epilogue = LaunchEpilogue,
    .take_rows = LaunchTakeRows,
    .transpose = LaunchTranspose,
    .column_sum = LaunchColumnSum,
    .layer_norm = LaunchLayerNorm,
    .layer_norm_backward_input = LaunchLayerNormBackwardInput,
    .layer_norm_backward_weight = LaunchLayerNormBackwardWeight,
    .softmax = LaunchSoftmax,
    .cross_entropy = LaunchCrossEntropy,
    .embedding = LaunchEmbedding,
    .embedding_backward = LaunchEmbeddingBackward,
    .positions = LaunchPositions,
    .positions_backward = LaunchPositionsBackward,
    .attention = LaunchAttention,
    .attention_backward = LaunchAttentionBackward,
    .attention_step = LaunchAttentionStep,
    .batch_norm = LaunchBatchNorm,
    .batch_norm_backward = LaunchBatchNormBackward,
    .fold = LaunchFold,
    .pool = LaunchPool,
    .place_pool = LaunchPlacePool,
    .unpool = LaunchUnpool,
    .global_pool = LaunchGlobalPool,
    .patches = LaunchPatches,
    .filters = LaunchFilters,
    .implicit = LaunchImplicit,
    .implicit_weight = LaunchImplicitWeight,
    .update = LaunchUpdate,
    .squares = LaunchSquares,
    .decide = LaunchDecide,
    .normalise = LaunchNormalise,
    .move = LaunchMove,
    .statistic = LaunchStatistic,
    .add_vectors = LaunchAddVectors,
    .fill = LaunchFill,
};

}  // namespace lockstep::engine::cuda
