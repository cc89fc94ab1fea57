// SPDX-License-Identifier: Apache-2.0
// The table of NCCL's functions, numbers and structs against the nccl.h that is installed (2.28 or
// newer).
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "collectives/nccl/nccl_api.h"

namespace lockstep {
namespace {

// Returns whether both are called alike: as many arguments of the same sizes and kinds.
template <typename R, typename... A, typename S, typename... B>
constexpr bool AreCalledAlike(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return sizeof(R) == sizeof(S) && (... && (sizeof(A) == sizeof(B))) &&
           (... && (std::is_pointer_v<A> == std::is_pointer_v<B>)) &&
           (... && (std::is_class_v<A> == std::is_class_v<B>));
  }
}
#define EXPECT_CALLED_ALIKE(member, function) \
  static_assert(AreCalledAlike(decltype(NcclApi::member){}, decltype(&(function)){}))

TEST(NcclHeader, FunctionsAreCalledAlike) {
  EXPECT_CALLED_ALIKE(get_version, ncclGetVersion);
  EXPECT_CALLED_ALIKE(get_unique_id, ncclGetUniqueId);
  EXPECT_CALLED_ALIKE(init_rank_config, ncclCommInitRankConfig);
  EXPECT_CALLED_ALIKE(abort, ncclCommAbort);
  EXPECT_CALLED_ALIKE(error_string, ncclGetErrorString);
  EXPECT_CALLED_ALIKE(last_error, ncclGetLastError);
  EXPECT_CALLED_ALIKE(async_error, ncclCommGetAsyncError);
  EXPECT_CALLED_ALIKE(group_start, ncclGroupStart);
  EXPECT_CALLED_ALIKE(group_end, ncclGroupEnd);
  EXPECT_CALLED_ALIKE(send, ncclSend);
  EXPECT_CALLED_ALIKE(recv, ncclRecv);
  EXPECT_CALLED_ALIKE(all_gather, ncclAllGather);
  EXPECT_CALLED_ALIKE(all_reduce, ncclAllReduce);
  EXPECT_CALLED_ALIKE(broadcast, ncclBroadcast);
  EXPECT_CALLED_ALIKE(mem_alloc, ncclMemAlloc);
  EXPECT_CALLED_ALIKE(mem_free, ncclMemFree);
  EXPECT_CALLED_ALIKE(window_register, ncclCommWindowRegister);
  EXPECT_CALLED_ALIKE(window_deregister, ncclCommWindowDeregister);
  EXPECT_CALLED_ALIKE(shrink, ncclCommShrink);
  EXPECT_CALLED_ALIKE(revoke, ncclCommRevoke);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
  EXPECT_CALLED_ALIKE(grow_id, ncclCommGetUniqueId);
  EXPECT_CALLED_ALIKE(grow, ncclCommGrow);
#endif
}

TEST(NcclHeader, NumbersAreTheSame) {
  EXPECT_EQ(int{kNcclSuccess}, int{ncclSuccess});
  EXPECT_EQ(int{kNcclUnhandledCudaError}, int{ncclUnhandledCudaError});
  EXPECT_EQ(int{kNcclSystemError}, int{ncclSystemError});
  EXPECT_EQ(int{kNcclInternalError}, int{ncclInternalError});
  EXPECT_EQ(int{kNcclInvalidArgument}, int{ncclInvalidArgument});
  EXPECT_EQ(int{kNcclInvalidUsage}, int{ncclInvalidUsage});
  EXPECT_EQ(int{kNcclRemoteError}, int{ncclRemoteError});
  EXPECT_EQ(int{kNcclInProgress}, int{ncclInProgress});
  EXPECT_EQ(int{kNcclUint8}, int{ncclUint8});
  EXPECT_EQ(int{kNcclInt32}, int{ncclInt32});
  EXPECT_EQ(int{kNcclInt64}, int{ncclInt64});
  EXPECT_EQ(int{kNcclFloat16}, int{ncclFloat16});
  EXPECT_EQ(int{kNcclFloat32}, int{ncclFloat32});
  EXPECT_EQ(int{kNcclFloat64}, int{ncclFloat64});
  EXPECT_EQ(int{kNcclBfloat16}, int{ncclBfloat16});
  EXPECT_EQ(int{kNcclSum}, int{ncclSum});
  EXPECT_EQ(int{kNcclMax}, int{ncclMax});
  EXPECT_EQ(int{kNcclMin}, int{ncclMin});
  EXPECT_EQ(kNcclShrinkAbort, NCCL_SHRINK_ABORT);
  EXPECT_EQ(kNcclWindowSymmetric, NCCL_WIN_COLL_SYMMETRIC);
  EXPECT_EQ(kNcclWindowAlignment, size_t{NCCL_WIN_REQUIRED_ALIGNMENT});
  EXPECT_EQ(NcclConfig::kUnset, NCCL_CONFIG_UNDEF_INT);
  static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
}

// A newer library may know more, behind what is here.
TEST(NcclHeader, TheConfigurationIsABeginningOfTheLibrarys) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_LE(ours.size, theirs.size);
  EXPECT_EQ(offsetof(NcclConfig, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(NcclConfig, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(NcclConfig, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(NcclConfig, max_ctas), offsetof(ncclConfig_t, maxCTAs));
  EXPECT_EQ(offsetof(NcclConfig, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(NcclConfig, split_share), offsetof(ncclConfig_t, splitShare));
  EXPECT_EQ(offsetof(NcclConfig, comm_name), offsetof(ncclConfig_t, commName));
  EXPECT_EQ(offsetof(NcclConfig, shrink_share), offsetof(ncclConfig_t, shrinkShare));
  EXPECT_EQ(offsetof(NcclConfig, nvlink_centric_sched), offsetof(ncclConfig_t, nvlinkCentricSched));
}

}  // namespace
}  // namespace lockstep
