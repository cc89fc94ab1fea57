// SPDX-License-Identifier: Apache-2.0
// The gradient of an embedding on the emulated GPU, bit for bit: a row's positions are added one
// after another, or, where there are many, in pieces whose sums are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/half.h"
#include "engine/cuda/kernels/tables.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int64_t kTableRows = 40;
constexpr float kUnwritten = 12345;

// Numbers in [-1, 1).
std::vector<float> MadeFloats(int64_t count, uint32_t seed) {
  std::vector<float> floats;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    floats.push_back(static_cast<float>(seed >> 8) * 0x1p-23f - 1);
  }
  return floats;
}

// The tokens that have so many positions each, mixed, with some that are outside the table.
std::vector<int32_t> MixedTokens(const std::vector<int64_t>& counts) {
  std::vector<int32_t> tokens(9, -1);
  tokens.insert(tokens.end(), 5, kTableRows);
  for (size_t row = 0; row < counts.size(); ++row) {
    tokens.insert(tokens.end(), static_cast<size_t>(counts[row]), static_cast<int32_t>(row));
  }
  uint32_t seed = 7;
  for (size_t i = tokens.size() - 1; i > 0; --i) {
    seed = seed * 1664525 + 1013904223;
    std::swap(tokens[i], tokens[(seed >> 4) % (i + 1)]);
  }
  return tokens;
}

struct Case {
  std::vector<int64_t> counts;  // of the table's first rows
  int64_t columns;
  Type type;
  bool adds;
};

std::vector<float> Expected(const Case& c, const std::vector<int32_t>& tokens,
                            const std::vector<float>& dy, std::vector<float> out) {
  for (int64_t row = 0; row < kTableRows; ++row) {
    std::vector<size_t> positions;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == row) positions.push_back(i);
    }
    const bool pieces = positions.size() > kEmbeddingPiece;
    for (int64_t column = 0; column < c.columns; ++column) {
      const auto x = [&](size_t place) {
        return dy[positions[place] * static_cast<size_t>(c.columns) + static_cast<size_t>(column)];
      };
      float& at = out[static_cast<size_t>(row * c.columns + column)];
      float sum = c.adds ? at : 0;
      for (size_t begin = 0; begin < positions.size();) {
        const size_t end =
            pieces ? std::min<size_t>(begin + kEmbeddingPiece, positions.size()) : begin + 1;
        float piece = x(begin);
        for (size_t i = begin + 1; i < end; ++i) piece += x(i);
        sum += piece;
        begin = end;
      }
      at = sum;
    }
  }
  return out;
}

std::vector<float> Made(const Case& c, std::vector<int32_t> tokens, std::vector<float> dy,
                        std::vector<float> out) {
  std::vector<uint16_t> halves;
  for (const float x : dy) halves.push_back(BFloat16::FromFloat(x).bits);
  const auto positions = static_cast<int64_t>(tokens.size());
  std::vector<float> partial(static_cast<size_t>(EmbeddingPartialFloats(positions, c.columns)) + 1,
                             kUnwritten);
  std::vector<int32_t> integers(static_cast<size_t>(2 * kTableRows + 1 + 2 * positions), -7);
  EmbeddingBackwardArgs args;
  args.tokens = tokens.data();
  args.dy = c.type == Type::kF32 ? View{dy.data(), c.type} : View{halves.data(), c.type};
  args.out = out.data();
  args.partial = partial.data();
  args.starts = integers.data();
  args.cursors = args.starts + kTableRows + 1;
  args.found = args.cursors + kTableRows;
  args.order = args.found + positions;
  args.positions = positions;
  args.rows = kTableRows;
  args.columns = c.columns;
  args.adds = c.adds;
  EXPECT_EQ(EmulatedTables()->kernels->embedding_backward(args, nullptr), 0);
  EXPECT_EQ(partial.back(), kUnwritten);
  return out;
}

// One position to more than a block puts in order, at and around a piece's end.
TEST(CudaEmbeddingTest, EveryRowIsTheSumInTheOrderThatIsDefined) {
  const std::vector<int64_t> few = {1, 0, 3, 30}, some = {0, 255, 256, 257, 1, 511, 512, 513},
                             many = {3, 2048, 2049, 5, 300, 4200, 256}, two = {4000, 1100};
  for (const Case& c : {Case{few, 24, Type::kF32, false}, Case{some, 24, Type::kF32, true},
                        Case{some, 5, Type::kBF16, false}, Case{many, 8, Type::kBF16, false},
                        Case{many, 3, Type::kF32, true}, Case{two, 264, Type::kBF16, true},
                        Case{{2600}, 300, Type::kF32, false}}) {
    const std::vector<int32_t> tokens = MixedTokens(c.counts);
    std::vector<float> dy = MadeFloats(static_cast<int64_t>(tokens.size()) * c.columns, 3);
    if (c.type == Type::kBF16) {
      for (float& x : dy) x = BFloat16::FromFloat(x).ToFloat();
    }
    const std::vector<float> out = MadeFloats(kTableRows * c.columns, 4);
    const std::vector<float> expected = Expected(c, tokens, dy, out);
    for (const auto order : {emulation::Order::kForward, emulation::Order::kBackward}) {
      emulation::SetOrder(order);
      EXPECT_EQ(Made(c, tokens, dy, out), expected)
          << c.counts.size() << " tokens, " << c.columns << " columns";
    }
  }
}

// Where no token can have more than a piece nothing is launched for pieces.
TEST(CudaEmbeddingTest, FewPositionsNeedNoPieces) {
  const auto launches = [](int64_t positions) {
    const std::vector<int32_t> tokens(static_cast<size_t>(positions), 3);
    const int64_t before = emulation::Launches();
    Made({{}, 8, Type::kF32, false}, tokens, MadeFloats(positions * 8, 1),
         MadeFloats(kTableRows * 8, 2));
    return emulation::Launches() - before;
  };
  EXPECT_EQ(launches(256), 6);
  EXPECT_EQ(launches(257), 7);
  EXPECT_EQ(launches(2049), 8);
}

}  // namespace
}  // namespace lockstep::engine::cuda
