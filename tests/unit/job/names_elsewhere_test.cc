// SPDX-License-Identifier: Apache-2.0
#include "job/names_elsewhere.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_file.h"

namespace lockstep::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A job with a model and an optimizer, and `lines` beside them in `train`.
std::string Errors(const std::string& lines, const std::string& model = "mlp: {hidden: [2]}",
                   const std::string& optimizer = "adam: {lr: 0.1}") {
  return ParseJob(absl::StrCat("train:\n  data: {fashion_mnist: {}}\n  model: {", model,
                               "}\n  optimizer: {", optimizer, "}\n", lines),
                  "job.yaml", {})
      .FormatErrors();
}

TEST(NamesElsewhere, CaseAndDashesMakeNoDifference) {
  EXPECT_THAT(NamesHere("Batch-Size"), ElementsAre("global_batch"));
  EXPECT_THAT(NamesHere("hidden_size"), ElementsAre("width", "hidden"));
  EXPECT_THAT(NamesHere("global_batch"), IsEmpty());
  EXPECT_THAT(NamesHere(""), IsEmpty());
}

TEST(NamesElsewhere, AnErrorSaysWhatTheKeyIsCalledHere) {
  const std::string errors =
      Errors("  batch_size: 32\n  num_train_epochs: 3\n  max_grad_norm: 1\n  grad_accum: 2\n");
  EXPECT_THAT(errors, HasSubstr("unknown key 'batch_size' in 'train'; did you mean "
                                "'global_batch'?"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'epochs'?"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'clip_norm'?"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'accumulate'?"));
  // What was meant is not missing besides.
  EXPECT_THAT(errors, Not(HasSubstr("needs")));
}

TEST(NamesElsewhere, AnErrorSaysWhatElseTheKeyMeansHere) {
  const std::string errors = Errors(
      "  per_device_train_batch_size: 8\n  gradient_accumulation_steps: 4\n  epochs: 1\n"
      "  schedule: {cosine: {eta_min: 1e-5}, warmup_ratio: 0.1}\n");
  EXPECT_THAT(errors,
              HasSubstr("did you mean 'global_batch'? (it counts the samples of all workers and "
                        "micro-batches of a step together)"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'accumulate'? (it divides the samples of "
                                "'global_batch', and does not multiply them)"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'min_factor'? (it is a factor of 'lr', not a rate)"));
  EXPECT_THAT(errors, HasSubstr("did you mean 'warmup_steps'? (it counts updates)"));
  EXPECT_THAT(Errors("  train_batch_size: 8\n  globl_batch: 8\n"),
              Not(HasSubstr("it counts the samples")))
      << "the same thing, and a slip";
  EXPECT_THAT(Errors("  global_batch: 4\n  epochs: 1\nworld_size: 2\n"),
              HasSubstr("did you mean 'resources.nproc_per_node'? (it counts the workers of each "
                        "node)"));
}

TEST(NamesElsewhere, ADifferenceIsThatOfANameAndAKey) {
  EXPECT_EQ(DifferenceHere("min-LR", "min_factor"), "it is a factor of 'lr', not a rate");
  EXPECT_EQ(DifferenceHere("min_lr", "lr"), "");
  EXPECT_EQ(DifferenceHere("learning_rate", "lr"), "");
}

TEST(NamesElsewhere, AKeyOfAModelIsThatOfItsKind) {
  const std::string train = "  global_batch: 4\n  epochs: 1\n";
  EXPECT_THAT(Errors(train, "mlp: {hidden_size: [2]}"), HasSubstr("did you mean 'hidden'?"));
  EXPECT_THAT(Errors(train, "gpt: {n_layer: 2, n_head: 2, hidden_size: 8}"),
              AllOf(HasSubstr("did you mean 'layers'?"), HasSubstr("did you mean 'heads'?"),
                    HasSubstr("did you mean 'width'?")));
}

TEST(NamesElsewhere, AKeyOfAnotherMappingIsNamedWithIt) {
  EXPECT_THAT(Errors("  global_batch: 4\n  epochs: 1\nbatch_size: 4\nworld_size: 2\n"),
              AllOf(HasSubstr("unknown key 'batch_size' in the job file; did you mean "
                              "'train.global_batch'?"),
                    HasSubstr("did you mean 'resources.nproc_per_node'?")));
}

TEST(NamesElsewhere, SettingsOfTheCommandLineAreToldToo) {
  const std::string text =
      "train:\n  data: {fashion_mnist: {}}\n  model: {mlp: {hidden: [2]}}\n"
      "  optimizer: {adam: {lr: 0.1}}\n  global_batch: 4\n  epochs: 1\n";
  EXPECT_THAT(ParseJob(text, "job.yaml", {"train.batch_size=8"}).FormatErrors(),
              HasSubstr("did you mean 'global_batch'?"));
  EXPECT_THAT(ParseJob(text, "job.yaml", {"batch_size=8"}).FormatErrors(),
              HasSubstr("did you mean 'train.global_batch'?"));
}

}  // namespace
}  // namespace lockstep::job
