// SPDX-License-Identifier: Apache-2.0
// The choice of kernels follows what was measured, is kept in a file by CPU and build, and changes
// no bit.
#include "engine/exec/kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/exec/kernel_timing.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::vector<Isa> kTwo = {Isa::kPortable, Isa::kAvx2};
const std::vector<Isa> kEvery = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

class KernelChoiceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/kernels-", ::getpid(), "-", number_++);
    file_ = folder_ + "/cache/kernels.tsv";
  }

  // ReadOrMeasure with times that `microseconds` says.
  KernelChoices Choose(const std::string& cpu, const std::vector<Isa>& usable,
                       const std::function<double(OpClass, Isa)>& microseconds) {
    return ReadOrMeasure(file_, cpu, usable, [&](OpClass op_class, absl::Span<const Isa> isas) {
      ++measured_;
      std::vector<double> times;
      for (const Isa isa : isas) times.push_back(microseconds(op_class, isa));
      return times;
    });
  }
  static double Even(OpClass, Isa) { return 100; }
  static double PortableQuick(OpClass, Isa isa) { return isa == Isa::kPortable ? 50 : 100; }

  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(file_).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(file_) << text; }

  static inline int number_ = 0;
  std::string folder_, file_;
  int measured_ = 0;  // classes
};

Isa Of(const KernelChoices& choices, OpClass op_class) {
  return choices.of[static_cast<size_t>(op_class)].isa;
}

TEST(QuickestOfTest, TimesDecideAndNoiseDoesNot) {
  EXPECT_EQ(QuickestOf({{Isa::kPortable, 90}, {Isa::kAvx2, 100}, {Isa::kAvx512, 120}}),
            Isa::kPortable);
  EXPECT_EQ(QuickestOf({{Isa::kPortable, 99}, {Isa::kAvx2, 100}, {Isa::kAvx512, 120}}), Isa::kAvx2);
  EXPECT_EQ(QuickestOf({{Isa::kPortable, 120}, {Isa::kAvx2, 100}, {Isa::kAvx512, 101}}),
            Isa::kAvx512);
  EXPECT_EQ(QuickestOf({{Isa::kAvx512, 7}}), Isa::kAvx512);
}

TEST(CandidatesForTest, TheInstructionForPairsIsOfBf16Alone) {
  EXPECT_THAT(CandidatesFor(OpClass::kProducts, kEvery),
              ElementsAre(Isa::kPortable, Isa::kAvx2, Isa::kAvx512));
  EXPECT_THAT(CandidatesFor(OpClass::kBf16Convolutions, kEvery), testing::ElementsAreArray(kEvery));
}

TEST_F(KernelChoiceTest, EachClassTakesWhatWasQuickest) {
  const KernelChoices choices = Choose("a", kEvery, [](OpClass op_class, Isa isa) {
    if (op_class == OpClass::kProducts) return isa == Isa::kAvx2 ? 50.0 : 100.0;
    if (op_class == OpClass::kBf16Products) return isa == Isa::kAvx512 ? 50.0 : 100.0;
    return 300.0 - static_cast<double>(isa);
  });
  EXPECT_EQ(Of(choices, OpClass::kProducts), Isa::kAvx2);
  EXPECT_EQ(Of(choices, OpClass::kBf16Products), Isa::kAvx512);
  EXPECT_EQ(Of(choices, OpClass::kRows), Isa::kAvx512);
  EXPECT_EQ(Of(choices, OpClass::kBf16Attention), Isa::kAvx512Bf16);
  EXPECT_EQ(choices.why, "measured");

  const CpuTargets targets = choices.Targets(3, std::nullopt);
  EXPECT_EQ(targets[OpClass::kProducts].threads, 3);
  EXPECT_FALSE(targets[OpClass::kBf16Products].bf16_pairs);
  EXPECT_TRUE(targets[OpClass::kBf16Attention].bf16_pairs);
  EXPECT_FALSE(choices.Targets(3, false)[OpClass::kBf16Attention].bf16_pairs);
  EXPECT_TRUE(choices.Targets(3, true)[OpClass::kBf16Products].bf16_pairs);
}

TEST_F(KernelChoiceTest, IsMeasuredOnceAndKept) {
  Choose("a", kTwo, PortableQuick);
  EXPECT_EQ(measured_, kOpClasses);
  const KernelChoices again = Choose("a", kTwo, Even);
  EXPECT_EQ(measured_, kOpClasses);
  EXPECT_EQ(Of(again, OpClass::kImages), Isa::kPortable);
  EXPECT_THAT(again.why, HasSubstr(file_));
  EXPECT_THAT(again.of[0].times, Contains(Field(&KernelTime::microseconds, 50)));
}

TEST_F(KernelChoiceTest, CpusAndBuildsHaveTheirOwnAndTheOldestAreForgotten) {
  Choose("a", kTwo, PortableQuick);
  EXPECT_EQ(Of(Choose("b", kTwo, Even), OpClass::kRows), Isa::kAvx2);
  EXPECT_EQ(measured_, 2 * kOpClasses);
  EXPECT_EQ(Of(Choose("a", kTwo, Even), OpClass::kRows), Isa::kPortable);
  EXPECT_EQ(Of(Choose("b", kTwo, PortableQuick), OpClass::kRows), Isa::kAvx2);
  EXPECT_EQ(measured_, 2 * kOpClasses);
  for (int i = 0; i < 31; ++i) Choose(absl::StrCat("build ", i), kTwo, Even);
  EXPECT_THAT(Text(), HasSubstr("b\trows"));
  EXPECT_THAT(Text(), Not(HasSubstr("a\trows")));
}

TEST_F(KernelChoiceTest, ADamagedFileCostsAMeasurement) {
  Choose("a", kTwo, PortableQuick);
  const std::string whole = Text();
  for (const std::string& text :
       {std::string(), std::string("\0\xFF\t\n\t\t\t", 7), whole.substr(0, whole.size() / 2),
        absl::StrCat(whole.substr(0, whole.size() - 4), "nan\n"),
        std::string("a\trows\tavx2=1 portable=-2\n")}) {
    Write(text);
    measured_ = 0;
    EXPECT_EQ(Of(Choose("a", kTwo, Even), OpClass::kRows), Isa::kAvx2) << text;
    EXPECT_EQ(measured_, kOpClasses);
    Choose("a", kTwo, PortableQuick);
    EXPECT_EQ(measured_, kOpClasses) << "it is whole again";
  }
}

// A set may turn out not to be usable, or to be there after all.
TEST_F(KernelChoiceTest, OtherCandidatesAreMeasuredAgain) {
  Choose("a", kTwo, Even);
  Choose("a", kEvery, Even);
  EXPECT_EQ(measured_, 2 * kOpClasses);
}

TEST_F(KernelChoiceTest, WhereNothingCanBeWrittenItIsMeasured) {
  std::ofstream(folder_) << "no folder";
  EXPECT_EQ(Of(Choose("a", kTwo, PortableQuick), OpClass::kRows), Isa::kPortable);
  EXPECT_EQ(Of(Choose("a", kTwo, Even), OpClass::kRows), Isa::kAvx2);
  file_.clear();
  EXPECT_EQ(Of(Choose("a", kTwo, PortableQuick), OpClass::kRows), Isa::kPortable);
}

// Those that come while one measures wait for what it writes.
TEST_F(KernelChoiceTest, OneOfManyMeasures) {
  std::vector<std::thread> others;
  std::vector<Isa> chosen(3);
  Choose("a", kTwo, [&](OpClass op_class, Isa isa) {
    if (others.empty()) {
      for (Isa& mine : chosen) {
        others.emplace_back([&] {
          mine = Of(ReadOrMeasure(file_, "a", kTwo,
                                  [](OpClass, absl::Span<const Isa> isas) {
                                    ADD_FAILURE() << "another one measures";
                                    return std::vector<double>(isas.size(), 1);
                                  }),
                    OpClass::kRows);
        });
      }
    }
    return PortableQuick(op_class, isa);
  });
  for (std::thread& other : others) other.join();
  EXPECT_THAT(chosen, Each(Isa::kPortable));
}

TEST(ChooseKernelsTest, ANameForcesEveryClass) {
  setenv(kIsaVariable, "portable", 1);
  const KernelChoices forced = ChooseKernels("").value();
  EXPECT_EQ(forced.why, kIsaVariable);
  for (const KernelChoice& choice : forced.of) {
    EXPECT_EQ(choice.isa, Isa::kPortable);
    EXPECT_THAT(choice.times, IsEmpty());
  }
  EXPECT_EQ(Of(ChooseKernels("avx2").value(), OpClass::kProducts), Isa::kAvx2);
  setenv(kIsaVariable, "sse2", 1);
  EXPECT_THAT(ChooseKernels("").status().message(), HasSubstr("no instruction set 'sse2'"));
  unsetenv(kIsaVariable);
}

TEST(TimeKernelsTest, EveryCandidateOfEveryClassTakesTime) {
  for (int i = 0; i < kOpClasses; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    const std::vector<Isa> candidates = CandidatesFor(op_class, UsableIsas());
    const std::vector<double> times = TimeKernels(op_class, candidates);
    EXPECT_EQ(times.size(), candidates.size());
    EXPECT_THAT(times, Each(Gt(0))) << Name(op_class);
  }
}

// Classes of one plan with other sets than their neighbours have, as a file says it.
TEST_F(KernelChoiceTest, AnyMixtureHasTheSameBits) {
  const auto trained = [](const TrainSpec& spec) {
    Job job(spec);
    std::vector<float> all;
    for (int64_t step = 1; step <= 2; ++step) {
      const std::vector<float> gradients =
          SumOf(PoisonedGradients(&job, step, 0), PoisonedGradients(&job, step, 1));
      all.insert(all.end(), gradients.begin(), gradients.end());
      UpdateWith(&job, step, gradients);
    }
    return all;
  };
  const std::vector<Isa> usable = UsableIsas();
  Choose(CpuAndBuild(), usable, [&](OpClass op_class, Isa isa) {
    return isa == usable[static_cast<size_t>(op_class) % usable.size()] ? 50.0 : 100.0;
  });
  MeasureKernels(file_);
  const KernelChoices mixed = ChooseKernels("").value();
  ASSERT_EQ(Of(mixed, OpClass::kRows), Isa::kPortable);
  ASSERT_EQ(Of(mixed, OpClass::kImages), Isa::kAvx2);
  for (TrainSpec (*make)() : {DeepMlp, NormedCnn, TinyResnet, TinyGpt, TinyBert}) {
    for (const char* precision : {"fp32", "bf16"}) {
      TrainSpec spec = make();
      spec.precision = precision;
      const std::vector<float> results = trained(spec);
      spec.passes.isa = "portable";
      EXPECT_TRUE(EqualBits(results, trained(spec))) << precision;
    }
  }
}

// What a refusal tells apart: two sides that differ in their kernels alone must not read alike.
TEST_F(KernelChoiceTest, APlanSaysWhoseKernelsDoItsWork) {
  CpuTargets targets = CpuTarget{Isa::kAvx512, 1, false};
  EXPECT_EQ(DescribeTargets(targets), "avx512");
  targets[OpClass::kRows].isa = targets[OpClass::kImages].isa = Isa::kAvx2;
  EXPECT_EQ(DescribeTargets(targets),
            "rows/images avx2, products/attention/convolutions/bf16 products/bf16 attention/"
            "bf16 convolutions avx512");
  TrainSpec spec = SmallMlp();
  spec.passes.isa = "portable";
  EXPECT_EQ(Plan::Compile(spec).value()->kernels(), "portable");
  spec.passes.isa = "";
  ::setenv(kIsaVariable, "portable", 1);
  const std::string forced = Plan::Compile(spec).value()->kernels();
  ::unsetenv(kIsaVariable);
  EXPECT_EQ(forced, "portable (LOCKSTEP_ISA)");
  EXPECT_THAT(DescribeDevice(forced, 2), HasSubstr(", portable (LOCKSTEP_ISA), 2 threads, "));
}

}  // namespace
}  // namespace lockstep::engine
