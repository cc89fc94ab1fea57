// SPDX-License-Identifier: Apache-2.0
// Where the CUDA module is looked for, and what is said where the driver cannot run it.
#include "engine/cuda/module.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine::cuda {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

TEST(CudaModuleTest, ItIsLookedForBesideProgramsAndBesideTests) {
  ::unsetenv("LOCKSTEP_CUDA_MODULE");
  const auto in = [](const std::string& folder) {
    return EndsWith(folder + "/liblockstep_cuda.so");
  };
  EXPECT_THAT(ModulePaths(), testing::ElementsAre(in(""), in("/../lib"), in("/../bin")));
  ::setenv("LOCKSTEP_CUDA_MODULE", "/nowhere.so", 1);
  EXPECT_THAT(ModulePaths(), testing::ElementsAre("/nowhere.so"));
}

TEST(CudaModuleTest, ADriverThatIsTooOldIsToBeUpdated) {
  Runtime runtime{};
  runtime.device_count = [](int*) -> Code { return 35; };
  runtime.error_text = [](Code) -> const char* { return "insufficient"; };
  Tables tables{};
  tables.runtime = &runtime;
  UseTables(&tables);
  const std::string text(ListDevices().status().message());
  UseTables(nullptr);
  EXPECT_THAT(text, AllOf(HasSubstr("no GPU can be used: insufficient (CUDA 13 needs driver 580 or "
                                    "newer: update it"),
                          HasSubstr("device: cpu")));
}

}  // namespace
}  // namespace lockstep::engine::cuda
