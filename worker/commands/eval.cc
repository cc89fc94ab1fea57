// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status.h"
#include "worker/commands/answers.h"
#include "worker/commands/saved_model.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
absl::Status AnswerEval(const EvalRequest& request, bool json) {
  const bool other = request.has_data();
  const int64_t wanted = request.data().train().eval().block();
  LS_ASSIGN_OR_RETURN(
      const std::unique_ptr<SavedModel> model,
      SavedModel::Open(request.model(), request.threads(), request.device(), other ? wanted : 0));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<data::Dataset> dataset,
                      model->OpenTestSplit(other ? &request.data() : nullptr));
  const absl::Time start = Clock::Real()->Now();
  // As in training: losses in block order in fp64, counts as integers.
  double loss = 0;
  int64_t correct = 0, samples = 0;
  LS_RETURN_IF_ERROR(model->ForEachBlock(
      *dataset,
      [&](const BlockReader::Block& block,
          const engine::Inference::BlockHooks& hooks) -> absl::Status {
        engine::EvalSums sums;
        LS_RETURN_IF_ERROR(model->executor()->Evaluate(block.fields, block.valid, &sums,
                                                       engine::Weights::kCurrent, hooks));
        loss += sums.loss;
        correct += sums.correct;
        samples += sums.samples;
        return absl::OkStatus();
      }));
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  // Without a target there is no mean.
  const double count =
      samples > 0 ? static_cast<double>(samples) : std::numeric_limits<double>::quiet_NaN();
  const size_t memory = model->plan().state_bytes() + model->plan().arena_bytes();
  std::string text;
  if (json) {
    text = JsonObject()
               .Add("schema", 1)
               .Add("ok", true)
               .Add("model", request.model())
               .Add("samples", samples)
               .Add("targets", samples)
               .Add("loss", loss / count)
               .Add("accuracy", static_cast<double>(correct) / count)
               .Add("seconds", seconds)
               .Add("memory_bytes", memory)
               .Done() +
           "\n";
  } else {
    text = absl::StrFormat("accuracy  %.2f %%\nloss      %.5f\n%s   %d in %.2f s\nmemory    %s\n",
                           100.0 * static_cast<double>(correct) / count, loss / count,
                           data::TargetsPerSample(*dataset) > 1 ? "targets" : "samples", samples,
                           seconds, BytesText(static_cast<double>(memory)));
  }
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace lockstep::worker
