// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy on the emulated GPU: rows that a block keeps in shared memory and rows that
// it reads again.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/half.h"
#include "engine/cuda/kernels/row_types.h"
#include "engine/cuda/kernels/tables.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine::cuda {
namespace {

constexpr size_t kLossShared = 228 << 10;  // of an H100's multiprocessor

struct LossCase {
  int64_t rows;
  int64_t columns;
  int64_t classes;
  Type type;
  double smoothing;
  bool in_place;
  bool gradient;
  int64_t shift;  // of the logits, in elements
  bool kept;
};

// An aligned array of elements, with one beyond either end that nothing may write.
class LossElements {
 public:
  LossElements(Type type, int64_t count, uint32_t seed, int64_t shift)
      : type_(type), count_(static_cast<size_t>(count)), words_(2 * (count_ + 64), 0x5a5a) {
    const auto address = reinterpret_cast<uintptr_t>(words_.data());
    first_ = 32 + (64 - address % 64) % 64 / 2 + static_cast<size_t>(shift) * width();
    for (size_t i = 0; i < count_; ++i) {
      seed = seed * 1664525 + 1013904223;
      const float x = static_cast<float>(seed >> 8) * 0x1p-21f - 4;
      if (type == Type::kF32) {
        std::memcpy(&words_[first_ + 2 * i], &x, sizeof(x));
      } else {
        words_[first_ + i] =
            type == Type::kBF16 ? BFloat16::FromFloat(x).bits : Float16::FromFloat(x).bits;
      }
    }
  }
  View view() { return {&words_[first_], type_}; }
  // From one element before the first to one behind the last.
  std::vector<uint16_t> all() const {
    const auto begin = words_.begin() + static_cast<int64_t>(first_ - width());
    return {begin, begin + static_cast<int64_t>((count_ + 2) * width())};
  }

 private:
  size_t width() const { return type_ == Type::kF32 ? 2 : 1; }
  Type type_;
  size_t count_;
  std::vector<uint16_t> words_;
  size_t first_ = 0;
};

struct LossMade {
  std::vector<uint16_t> gradient;
  std::vector<double> row_sums;
  std::vector<float> loss;
  size_t asked = 0;  // of shared memory
  bool operator==(const LossMade& o) const {
    return gradient == o.gradient && row_sums == o.row_sums && loss == o.loss;
  }
};

LossMade RunLoss(const LossCase& c, size_t shared_bytes) {
  emulation::SetSharedBytes(shared_bytes);
  LossElements logits(c.type, c.rows * c.columns, 1, c.shift);
  LossElements apart(c.type, c.rows * c.columns, 2, 0);
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < c.rows; ++row) {
    labels.push_back(row == 1 ? -1 : static_cast<int32_t>((row * 7 + c.classes - 1) % c.classes));
  }
  float seed = 0.37f;
  LossMade made;
  made.row_sums.resize(static_cast<size_t>(4 * c.rows));
  made.loss.resize(3);
  CrossEntropyArgs args;
  args.logits = logits.view();
  args.labels = labels.data();
  if (c.gradient) {
    args.seed = {&seed, Type::kF32};
    args.gradient = c.in_place ? logits.view() : apart.view();
  }
  args.row_sums = made.row_sums.data();
  args.loss = &made.loss[0];
  args.count = &made.loss[1];
  args.rows = c.rows;
  args.columns = c.columns;
  args.classes = c.classes;
  args.smoothing = c.smoothing;
  EXPECT_EQ(EmulatedTables()->kernels->cross_entropy(args, nullptr), 0);
  made.gradient = c.in_place ? logits.all() : apart.all();
  made.asked = emulation::SharedBytesAsked();
  emulation::SetSharedBytes(kLossShared);
  return made;
}

// A row that is kept gives the bits of one that is read again; the largest that fits twice is kept,
// the next one is not, nor are rows that lie at odd places or whose gradient nobody asks for.
TEST(CudaLossTest, RowsThatAreKeptGiveTheSameBits) {
  constexpr Type kF32 = Type::kF32, kBF16 = Type::kBF16, kF16 = Type::kF16;
  for (const LossCase& c : {LossCase{3, 8, 8, kF32, 0, false, true, 0, true},
                            LossCase{4, 40, 37, kBF16, 0.1, true, true, 0, true},
                            LossCase{5, 2056, 2051, kF32, 0.1, true, true, 0, true},
                            LossCase{3, 4104, 4097, kF16, 0, false, true, 0, true},
                            LossCase{3, 30528, 30522, kBF16, 0, true, true, 0, true},
                            LossCase{2, 50304, 50257, kBF16, 0, false, true, 0, true},
                            LossCase{2, 57344, 57344, kBF16, 0, true, true, 0, true},
                            LossCase{2, 57352, 57352, kBF16, 0, true, true, 0, false},
                            LossCase{2, 28672, 28670, kF32, 0, false, true, 0, true},
                            LossCase{2, 28680, 28675, kF32, 0, true, true, 0, false},
                            LossCase{3, 37, 37, kF32, 0.1, true, true, 0, false},
                            LossCase{3, 40, 40, kBF16, 0, false, true, 1, false},
                            LossCase{3, 40, 40, kBF16, 0, false, false, 0, false}}) {
    const LossMade kept = RunLoss(c, kLossShared), again = RunLoss(c, 0);
    EXPECT_TRUE(kept == again) << c.columns;
    const size_t bytes = static_cast<size_t>(c.columns) * (c.type == kF32 ? 4 : 2);
    EXPECT_EQ(kept.asked, c.kept ? bytes : 0) << c.columns;
    EXPECT_EQ(again.asked, 0u) << c.columns;
    EXPECT_GT(kept.loss[0], 0) << c.columns;
  }
}

// Two rows with what lies beside them fit.
TEST(CudaLossTest, TwoRowsFitIntoAMultiprocessor) {
  for (const int64_t bytes : {228 << 10, 164 << 10, 100 << 10}) {
    EXPECT_TRUE(KeepsLogits(bytes / 2 - 2048, bytes));
    EXPECT_FALSE(KeepsLogits(bytes / 2 - 2047, bytes));
  }
  EXPECT_FALSE(KeepsLogits(8, 0));
}

}  // namespace
}  // namespace lockstep::engine::cuda
