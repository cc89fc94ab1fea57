// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's C interface that is used here, as a table of functions that are looked up at
// run time: nothing of NCCL is needed to build, and an older library lacks what came later. Names
// and numbers are those of nccl.h. Null: the library does not have it.
//
// Thread-safety: as NCCL: one thread at a time for each communicator; groups belong to a thread.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_API_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <cstdint>

namespace lockstep {

using NcclComm = struct NcclCommHandle*;
using NcclWindow = struct NcclWindowHandle*;

struct NcclUniqueId {
  char bytes[128];
};

// ncclResult_t.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

// ncclDataType_t and ncclRedOp_t, the values in use.
enum NcclType : int {
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclInt64 = 4,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};
enum NcclReduction : int { kNcclSum = 0, kNcclMax = 2, kNcclMin = 3 };

// ncclConfig_t as of 2.28. A library that knows less reads its part, one that knows more takes its
// defaults for the rest: `size` and `version` say what this is.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
  int traffic_class = kUnset;
  const char* comm_name = nullptr;
  int collnet_enable = kUnset;
  int cta_policy = kUnset;
  int shrink_share = kUnset;
  int nvls_ctas = kUnset;
  int channels_per_net_peer = kUnset;
  int nvlink_centric_sched = kUnset;
};

inline constexpr int kNcclShrinkAbort = 1;
inline constexpr int kNcclWindowSymmetric = 1;
inline constexpr size_t kNcclWindowAlignment = 4096;

struct NcclApi {
  // What every library that can be used has.
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                 NcclConfig* config) = nullptr;
  NcclResult (*abort)(NcclComm comm) = nullptr;
  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;
  NcclResult (*async_error)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void* data, size_t count, NcclType type, int peer, NcclComm comm,
                     void* stream) = nullptr;
  NcclResult (*recv)(void* data, size_t count, NcclType type, int peer, NcclComm comm,
                     void* stream) = nullptr;
  NcclResult (*all_gather)(const void* input, void* output, size_t count, NcclType type,
                           NcclComm comm, void* stream) = nullptr;
  NcclResult (*all_reduce)(const void* input, void* output, size_t count, NcclType type,
                           NcclReduction op, NcclComm comm, void* stream) = nullptr;
  NcclResult (*broadcast)(const void* input, void* output, size_t count, NcclType type, int root,
                          NcclComm comm, void* stream) = nullptr;
  // 2.19.
  NcclResult (*mem_alloc)(void** memory, size_t bytes) = nullptr;
  NcclResult (*mem_free)(void* memory) = nullptr;
  // 2.27.
  NcclResult (*window_register)(NcclComm comm, void* memory, size_t bytes, NcclWindow* window,
                                int flags) = nullptr;
  NcclResult (*window_deregister)(NcclComm comm, NcclWindow window) = nullptr;
  NcclResult (*shrink)(NcclComm comm, int* excluded, int count, NcclComm* made, NcclConfig* config,
                       int flags) = nullptr;
  // 2.28.7.
  NcclResult (*revoke)(NcclComm comm, int flags) = nullptr;
  // 2.29.
  NcclResult (*grow_id)(NcclComm comm, NcclUniqueId* id) = nullptr;
  NcclResult (*grow)(NcclComm comm, int ranks, const NcclUniqueId* id, int rank, NcclComm* made,
                     NcclConfig* config) = nullptr;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_API_H_
