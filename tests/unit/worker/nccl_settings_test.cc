// SPDX-License-Identifier: Apache-2.0
// The variables that a job's nccl section stands for.
#include "worker/setup/nccl_settings.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;

TEST(NcclSettings, OnlyWhatIsWrittenIsSet) {
  Nccl nccl;
  nccl.set_use("always");
  nccl.set_order("fixed");
  nccl.set_symmetric_memory(false);
  EXPECT_THAT(NcclVariables(nccl, false), IsEmpty());
  nccl.set_algo("ring");
  nccl.set_p2p_disable(false);
  nccl.set_nthreads(256);
  nccl.set_buffsize(1 << 22);
  nccl.set_multi_rank_gpu(true);
  (*nccl.mutable_env())["NCCL_B"] = "b";
  (*nccl.mutable_env())["NCCL_A"] = "a";
  EXPECT_THAT(NcclVariables(nccl, true),
              ElementsAre(Pair("NCCL_ALGO", "ring"), Pair("NCCL_P2P_DISABLE", "0"),
                          Pair("NCCL_NTHREADS", "256"), Pair("NCCL_BUFFSIZE", "4194304"),
                          Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1"), Pair("NCCL_A", "a"),
                          Pair("NCCL_B", "b")));
}

// Which adapters NCCL takes: the job's word, else the environment's, which NCCL reads itself.
TEST(NcclSettings, TheJobsAdaptersGoBeforeTheEnvironments) {
  ::setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
  ::setenv("NCCL_IB_HCA", "mlx5_0", 1);
  ::setenv("NCCL_NET_GDR_LEVEL", "PHB", 1);
  Nccl nccl;
  nccl.set_socket_ifname("=ib0,ib1");
  nccl.set_ib_hca("^mlx5_3:1");
  (*nccl.mutable_env())["NCCL_IB_TC"] = "106";
  SetNcclEnvironment(nccl, false);
  EXPECT_EQ(std::string(std::getenv("NCCL_SOCKET_IFNAME")), "=ib0,ib1");
  EXPECT_EQ(std::string(std::getenv("NCCL_IB_HCA")), "^mlx5_3:1");
  EXPECT_EQ(std::string(std::getenv("NCCL_IB_TC")), "106");
  EXPECT_EQ(std::string(std::getenv("NCCL_NET_GDR_LEVEL")), "PHB");
}

TEST(NcclSettings, SharedGpusAreNcclsUnlessTheJobSaysNo) {
  Nccl nccl;
  EXPECT_THAT(NcclVariables(nccl, true), ElementsAre(Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1")));
  EXPECT_TRUE(MayShareGpu(nccl));
  nccl.set_multi_rank_gpu(true);
  EXPECT_THAT(NcclVariables(nccl, true), ElementsAre(Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1")));
  EXPECT_THAT(NcclVariables(nccl, false), IsEmpty());
  nccl.set_multi_rank_gpu(false);
  EXPECT_THAT(NcclVariables(nccl, true), IsEmpty());
  EXPECT_FALSE(MayShareGpu(nccl));
}

// Every field has a type that can be said to NCCL.
TEST(NcclSettings, EveryFieldCanBeSet) {
  Nccl nccl;
  const auto& type = *Nccl::descriptor();
  const auto& reflection = *nccl.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    if (field.is_map()) continue;
    if (field.cpp_type() == field.CPPTYPE_STRING) reflection.SetString(&nccl, &field, "x");
    if (field.cpp_type() == field.CPPTYPE_BOOL) reflection.SetBool(&nccl, &field, true);
    if (field.cpp_type() == field.CPPTYPE_INT32) reflection.SetInt32(&nccl, &field, 1);
    if (field.cpp_type() == field.CPPTYPE_INT64) reflection.SetInt64(&nccl, &field, 1);
  }
  // use, order, symmetric_memory and env are ours; multi_rank_gpu has another name.
  EXPECT_EQ(NcclVariables(nccl, true).size(), static_cast<size_t>(type.field_count()) - 4);
  for (const auto& [name, value] : NcclVariables(nccl, true))
    EXPECT_THAT(name, StartsWith("NCCL_"));
}

TEST(NcclSettings, ItsWatchHasAPortOfItsOwnUnlessTheUserChoseOne) {
  ::unsetenv("NCCL_RAS_ADDR");
  SetNcclEnvironment(Nccl(), false);
  EXPECT_THAT(std::string(std::getenv("NCCL_RAS_ADDR")), StartsWith("localhost:"));
  ::setenv("NCCL_RAS_ADDR", "elsewhere:7", 1);
  SetNcclEnvironment(Nccl(), false);
  EXPECT_EQ(std::string(std::getenv("NCCL_RAS_ADDR")), "elsewhere:7");
}

}  // namespace
}  // namespace lockstep::worker
