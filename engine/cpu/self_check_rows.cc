// SPDX-License-Identifier: Apache-2.0
// Kernels of row_kernels.h and optim_kernels.h.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/half.h"
#include "common/philox.h"
#include "engine/cpu/kernel_comparison.h"

namespace lockstep::engine {
namespace {

void PutBf16(const uint16_t* halves, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = BFloat16{halves[i]}.ToFloat();
}

void CheckActivations(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y();
  std::vector<float> wide(x, x + kCheckCount);
  for (float& value : wide) value *= 6;
  const auto rounded = [](const float* values) {
    std::vector<uint16_t> bits(kCheckCount);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = BFloat16::FromFloat(values[i]).bits;
    return bits;
  };
  for (size_t a = 0; a < kActivations; ++a) {
    compare->Run(absl::StrCat("activation ", a), [&](const KernelTables& t, float* out) {
      t.rows->activation[a](wide.data(), kCheckCount, out);
    });
    compare->Run(absl::StrCat("activation_backward ", a), [&](const KernelTables& t, float* out) {
      t.rows->activation_backward[a](y, x, kCheckCount, out);
    });
    compare->Run(absl::StrCat("activation_bf16 ", a), [&](const KernelTables& t, float* out) {
      std::vector<uint16_t> results(kCheckCount);
      t.rows->activation_bf16[a](rounded(wide.data()).data(), kCheckCount, results.data());
      PutBf16(results.data(), kCheckCount, out);
    });
    compare->Run(absl::StrCat("activation_backward_bf16 ", a),
                 [&](const KernelTables& t, float* out) {
                   std::vector<uint16_t> results(kCheckCount);
                   t.rows->activation_backward_bf16[a](rounded(y).data(), rounded(x).data(),
                                                       kCheckCount, results.data());
                   PutBf16(results.data(), kCheckCount, out);
                 });
    compare->Run(absl::StrCat("activate_rows ", a), [&](const KernelTables& t, float* out) {
      t.rows->activate_rows[a](3, kCheckCount, 96, out);
    });
  }
}

void CheckNorms(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  const float* rstd = compare->positive();
  compare->Run("layer_norm", [&](const KernelTables& t, float* out) {
    for (const int64_t n : kCheckCounts) {
      t.rows->layer_norm(x, y, z, n, 1e-5f, out, out + 256 + n, out + 512 + n);
    }
  });
  for (const float* residual : {static_cast<const float*>(nullptr), z + 512}) {
    compare->Run("layer_norm_backward", [&](const KernelTables& t, float* out) {
      for (const int64_t n : kCheckCounts) {
        t.rows->layer_norm_backward(x, y, z, 0.1f, 0.9f, residual, n, out);
        out += n;
      }
    });
  }
  for (const bool add : {false, true}) {
    compare->Run("layer_norm_sums", [&](const KernelTables& t, float* out) {
      t.rows->layer_norm_sums(x, y, z, rstd, kCheckStride, kCheckRows, kCheckColumns, add, out,
                              out + 256);
    });
  }
}

void CheckAttention(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  compare->Run("dot", [&](const KernelTables& t, float* out) {
    for (const int64_t n : kCheckCounts) out[n] = t.rows->dot(x, y, n);
  });
  // All counts of rows beside one another, with keys and columns left over.
  for (const int64_t depth : {16, 48, 37}) {
    const StepRows rows{y, depth + 3, 7};
    const KeptRows kept{x, depth + 1, 11, depth};
    compare->Run("kept_scores", [&](const KernelTables& t, float* out) {
      t.rows->kept_scores(kept, rows, 0.3f, {out, kept.count + 2});
    });
    for (const bool accumulate : {false, true}) {
      compare->Run("kept_sums", [&](const KernelTables& t, float* out) {
        std::copy_n(z, rows.count * depth, out);
        std::vector<float> scores(y, y + rows.count * kept.count);
        t.rows->kept_sums(kept, {scores.data(), kept.count}, rows.count, accumulate, out, depth);
      });
    }
  }
  compare->Run("softmax_backward", [&](const KernelTables& t, float* out) {
    t.rows->softmax_backward(x, y, 0.3f, kCheckCount, out);
  });
  compare->Run("exp_shifted", [&](const KernelTables& t, float* out) {
    t.rows->exp_shifted(x, 0.5f, kCheckCount, out);
  });
  const RandomSite site{0x0123456789abcdefULL, 77, 3};
  // Compared as numbers below 2^24, of the words' high and low halves.
  const auto put = [](const uint32_t* words, float* out) {
    for (int64_t i = 0; i < kRandomBlock; ++i) {
      out[2 * i] = static_cast<float>(words[i] >> 16);
      out[2 * i + 1] = static_cast<float>(words[i] & 0xffff);
    }
  };
  uint32_t words[2 * kRandomBlock] = {};
  for (const uint64_t block : {uint64_t{5}, uint64_t{1} << 34}) {
    compare->Run("random_words", [&](const KernelTables& t, float* out) {
      std::fill(std::begin(words), std::end(words), 0);
      t.rows->random_words(site, block, words);
      put(words, out);
    });
    compare->Run("random_halves", [&](const KernelTables& t, float* out) {
      std::fill(std::begin(words), std::end(words), 0);
      t.rows->random_halves(site, block, words);
      put(words, out);
    });
  }
  for (size_t i = 0; i < std::size(words); ++i)
    words[i] = static_cast<uint32_t>(MixBits(i)) & 0xffff;
  for (const float* residual : {static_cast<const float*>(nullptr), z}) {
    compare->Run("dropout", [&](const KernelTables& t, float* out) {
      t.rows->dropout(x, words, 0x8000, 1.5f, residual, kCheckCount, out);
    });
  }
  for (const uint32_t* own :
       {static_cast<const uint32_t*>(nullptr), static_cast<const uint32_t*>(words)}) {
    compare->Run("probability_gradient", [&](const KernelTables& t, float* out) {
      std::copy_n(x, kCheckCount, out);
      std::copy_n(y, kCheckCount, out + 256);
      t.rows->probability_gradient(out, own, 0x8000, 1.5f, 0.2f, kCheckCount, out + 256);
    });
  }
}

void CheckAttentionOfBf16(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y();
  std::vector<uint32_t> words(kCheckCount + kRandomBlock);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(MixBits(i)) & 0xffff;
  // Whole vectors are written behind the last one seen.
  constexpr int64_t kEnd = kCheckCount + 40;
  std::vector<uint16_t> p(kEnd + 64), ds(kEnd + 64);
  for (const int64_t seen : {int64_t{1}, int64_t{3}, int64_t{64}, kCheckCount}) {
    for (const uint32_t* own :
         {static_cast<const uint32_t*>(nullptr), static_cast<const uint32_t*>(words.data())}) {
      const ScoreRow row{x, seen, kEnd, 0.25f, own, 0x8000, 1.5f};
      compare->Run("probabilities_bf16", [&](const KernelTables& t, float* out) {
        *out = t.rows->probabilities_bf16(row, p.data(), out + 1);
        PutBf16(p.data(), kEnd, out + 2);
      });
      compare->Run("probability_gradient_bf16", [&](const KernelTables& t, float* out) {
        t.rows->probability_gradient_bf16(row, y, 1.1f, 0.2f, p.data(), ds.data());
        PutBf16(p.data(), kEnd, out);
        PutBf16(ds.data(), kEnd, out + 2048);
      });
    }
  }
  std::vector<uint16_t> halves(static_cast<size_t>(2 * kCheckCount));
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = BFloat16::FromFloat(x[i]).bits;
  compare->Run("dot_bf16", [&](const KernelTables& t, float* out) {
    for (const int64_t n : kCheckCounts) {
      out[n] = t.rows->dot_bf16(halves.data(), halves.data() + kCheckCount, n);
    }
  });
  compare->Run("scale_to_bf16", [&](const KernelTables& t, float* out) {
    t.rows->scale_to_bf16(x, 0.3f, kCheckCount, p.data());
    PutBf16(p.data(), kCheckCount, out);
  });
}

}  // namespace

void CheckRowKernels(KernelComparison* compare) {
  CheckActivations(compare);
  CheckNorms(compare);
  CheckAttention(compare);
  CheckAttentionOfBf16(compare);
}

void CheckOptimKernels(KernelComparison* compare) {
  const float *x = compare->x(), *z = compare->z(), *v = compare->positive();
  const AdamArgs args{0.5f, 0.01f, 0.99f, 0.1f, 0.999f, 0.001f, 1.1f, 1.2f, 1e-8f, 0.01f, 0.02f};
  const auto put = [](const NormLanes& lanes, float* out) {
    for (const double lane : lanes.lane) *out++ = static_cast<float>(lane);
  };
  compare->Run("sum_squares", [&](const KernelTables& t, float* out) {
    NormLanes lanes;
    t.optim->sum_squares(x, kCheckCount, &lanes);
    put(lanes, out);
  });
  // Moments in out and out + 256, the weights in out + 512.
  const auto begin = [&](float* out) {
    std::copy_n(x + 256, kCheckCount, out);
    std::copy_n(v, kCheckCount, out + 256);
  };
  compare->Run("adam", [&](const KernelTables& t, float* out) {
    begin(out);
    t.optim->adam(args, z, kCheckCount, out, out + 256, out + 512);
  });
  compare->Run("lamb_measure", [&](const KernelTables& t, float* out) {
    begin(out);
    NormLanes weights, directions;
    t.optim->lamb_measure(args, z, kCheckCount, out, out + 256, x, &weights, &directions);
    put(weights, out + 512);
    put(directions, out + 528);
  });
  compare->Run("lamb_move", [&](const KernelTables& t, float* out) {
    t.optim->lamb_move(args, 0.01f, kCheckCount, x, v, out);
  });
  for (const bool nesterov : {false, true}) {
    compare->Run("muon_direction", [&](const KernelTables& t, float* out) {
      t.optim->muon_direction(0.5f, 0.1f, nesterov, z, kCheckCount, out, out + 256);
    });
  }
  compare->Run("move", [&](const KernelTables& t, float* out) {
    t.optim->move(0.99f, 0.1f, x, kCheckCount, out);
  });
  compare->Run("average", [&](const KernelTables& t, float* out) {
    t.optim->average(0.1f, x, kCheckCount, out);
  });
}

}  // namespace lockstep::engine
