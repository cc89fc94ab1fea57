// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target's entry over its seed corpus, the folder that LOCKSTEP_TEST_CORPUS names, and
// over inputs made of the seeds by chance, the same in each run. LOCKSTEP_TEST_MUTATIONS: the
// seconds that these take at most (0.5).
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Chance = std::mt19937_64;

std::vector<std::string> Seeds() {
  const char* corpus = std::getenv("LOCKSTEP_TEST_CORPUS");
  if (corpus == nullptr) return {};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const fs::path& file : files) {
    std::stringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    seeds.push_back(text.str());
  }
  return seeds;
}

void Handle(const std::string& input) {
  EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()),
            0);
}

size_t Below(Chance& chance, size_t n) { return n == 0 ? 0 : chance() % n; }

std::string Part(Chance& chance, const std::string& text) {
  const size_t begin = Below(chance, text.size());
  return text.substr(begin, 1 + Below(chance, 32));
}

// What parsers are wrong about: bits, lengths and numbers at their ends, parts that are missing,
// doubled or of another input.
void Change(Chance& chance, const std::string& other, std::string& input) {
  const size_t at = Below(chance, input.size());
  switch (Below(chance, 8)) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << Below(chance, 8)));
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(chance());
      break;
    case 2:
      input.erase(at, 1 + Below(chance, 16));
      break;
    case 3:
      input.insert(at, Part(chance, input));
      break;
    case 4:
      input.insert(at, Part(chance, other));
      break;
    case 5:
      input.resize(at);
      break;
    case 6: {
      static constexpr uint64_t kEnds[] = {0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, ~uint64_t{0}};
      const uint64_t end = kEnds[Below(chance, std::size(kEnds))];
      const size_t bytes = size_t{1} << Below(chance, 4);
      if (at + bytes > input.size()) break;
      for (size_t i = 0; i < bytes; ++i) input[at + i] = static_cast<char>(end >> (8 * i));
      break;
    }
    default: {
      static const char* const kNumbers[] = {"-1", "18446744073709551616", "1e999", "nan", "0x"};
      input.insert(at, kNumbers[Below(chance, std::size(kNumbers))]);
    }
  }
}

double CpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(CorpusTest, EverySeedIsHandled) {
  const std::vector<std::string> seeds = Seeds();
  for (const std::string& seed : seeds) Handle(seed);
  EXPECT_GE(seeds.size(), 3u);
}

TEST(CorpusTest, WhatBecomesOfSeedsByChanceIsHandled) {
  constexpr int kMost = 5000;
  const char* limit = std::getenv("LOCKSTEP_TEST_MUTATIONS");
  const double end = CpuSeconds() + (limit == nullptr ? 0.5 : std::atof(limit));
  const std::vector<std::string> seeds = Seeds();
  ASSERT_FALSE(seeds.empty());
  // A crash leaves its input there.
  const fs::path file = fs::temp_directory_path() / ("mutation." + std::to_string(::getpid()));
  Chance chance(1);
  for (int i = 0; (limit != nullptr || i < kMost) && CpuSeconds() < end; ++i) {
    std::string input = seeds[Below(chance, seeds.size())];
    const std::string& other = seeds[Below(chance, seeds.size())];
    for (size_t changes = 1 + Below(chance, 4); changes > 0; --changes) {
      Change(chance, other, input);
    }
    std::ofstream(file, std::ios::binary | std::ios::trunc) << input;
    Handle(input);
    if (HasFailure()) return;
  }
  fs::remove(file);
}

}  // namespace
