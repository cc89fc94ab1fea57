// SPDX-License-Identifier: Apache-2.0
// The launches that the module's table is made of (tables.h); one file of kernels for each family.
// Thread-safety: as the table.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_

#include "engine/cuda/kernels/row_types.h"
#include "engine/cuda/kernels/types.h"
#include "engine/cuda/kernels/update_types.h"

namespace lockstep::engine::cuda {

// Launches kernels on `stream`; waits for nothing. 0, or CUDA's error.
template <typename Args>
using Launcher = Code(const Args& args, Stream stream);

#define LOCKSTEP_KERNELS(Args, name, Name) Launcher<Args> Launch##Name;
#include "engine/cuda/kernels/kernel_list.inc"

// The sums of any rows; kernels of layer_norm_backward.cu have those that fit into warps.
Launcher<LayerNormBackwardWeightArgs> LaunchLayerNormColumns;

// On tensor cores, where they can: 16-bit factors of one type, in rows that move 16 bytes at once.
bool AttentionFitsTensorCores(const AttentionArgs& args);
bool AttentionBackwardFitsTensorCores(const AttentionBackwardArgs& args);
Launcher<AttentionArgs> LaunchMatrixAttention;
// REQUIRES: args.delta is made.
Launcher<AttentionBackwardArgs> LaunchMatrixAttentionBackward;
// By warpgroups of sm_90a, where these can.
bool AttentionFitsWarpgroups(const AttentionArgs& args);
bool AttentionBackwardFitsWarpgroups(const AttentionBackwardArgs& args);
Launcher<AttentionArgs> LaunchGroupAttention;
// Dropout's bits by themselves, for attention that other kernels do. REQUIRES: args.kept.
Launcher<AttentionArgs> LaunchKeptBits;
// Makes delta itself. REQUIRES: args.rows and, with dropout, args.forward.kept or args.kept.
Launcher<AttentionBackwardArgs> LaunchGroupAttentionBackward;

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ALL_H_
