// SPDX-License-Identifier: Apache-2.0
#include "common/cpu_list.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CpuList, ReadsWhatTheKernelWrites) {
  EXPECT_THAT(*ParseCpuList("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(*ParseCpuList("5,1-2,2"), ElementsAre(1, 2, 5));
  EXPECT_THAT(*ParseCpuList(""), IsEmpty());
  for (const char* bad : {"a", "3-1", "-1", "1-2-3", "0-99999999", "1;2"}) {
    EXPECT_EQ(ParseCpuList(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(CpuList, WritesWhatItReads) {
  for (const char* text : {"", "0", "0-1", "0-31,64-95", "1,3,5-7"}) {
    EXPECT_EQ(CpuListText(*ParseCpuList(text)), text);
  }
}

TEST(CpuList, AThreadStaysWhereItIsKept) {
  std::thread([] {
    const auto all = CpusOfThread();
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_FALSE(all->empty());
    const int last = all->back();
    ASSERT_TRUE(KeepThreadOn({last}).ok());
    EXPECT_THAT(*CpusOfThread(), ElementsAre(last));
    EXPECT_FALSE(KeepThreadOn({}).ok());
    EXPECT_FALSE(KeepThreadOn({16000}).ok());
    EXPECT_THAT(*CpusOfThread(), ElementsAre(last));
  }).join();
}

}  // namespace
}  // namespace lockstep
