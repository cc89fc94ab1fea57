// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target's entry over its seed corpus, the folder that LOCKSTEP_TEST_CORPUS names.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

TEST(CorpusTest, EverySeedIsHandled) {
  const char* corpus = std::getenv("LOCKSTEP_TEST_CORPUS");
  ASSERT_NE(corpus, nullptr);
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    const std::string seed = text.str();
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(seed.data()), seed.size()),
              0);
    ++seeds;
  }
  EXPECT_GE(seeds, 3);
}
