// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status.h"
#include "worker/commands/answers.h"
#include "worker/commands/saved_model.h"
#include "worker/commands/text_writer.h"
#include "worker/commands/token_sampler.h"

namespace lockstep::worker {
namespace {

// A model of bytes begins a text as a new line does.
constexpr int32_t kLineEnd = 10;

// The prompt as tokens. `bytes`: the model's tokens are the bytes of a text.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const std::string& prompt, bool bytes) {
  std::vector<int32_t> tokens;
  if (bytes) {
    for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back(kLineEnd);
    return tokens;
  }
  const std::vector<std::string> words =
      absl::StrSplit(prompt, absl::ByAnyChar(" ,\t\n"), absl::SkipEmpty());
  for (const std::string& word : words) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--prompt: '", word,
          "' is not a number: the model was trained on files of tokens, and its prompt is their "
          "numbers, such as '464 3290'"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        "the model was trained on files of tokens: --prompt names at least one of their numbers");
  }
  return tokens;
}

std::string TextOf(absl::Span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

absl::Status Show(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return ResultNotWritten(errno);
}

std::string Answer(const GenerateRequest& request, bool bytes, absl::Span<const int32_t> made,
                   double seconds) {
  JsonObject answer;
  answer.Add("schema", 1).Add("ok", true).Add("model", request.model());
  answer.Add("prompt", request.prompt()).Raw("tokens", JsonArrayOf(made));
  if (bytes) answer.Add("text", TextOf(made));
  const double rate = seconds > 0 ? static_cast<double>(made.size()) / seconds : 0;
  answer.Add("seed", request.seed()).Add("seconds", seconds).Add("tokens_per_second", rate);
  return answer.Done() + "\n";
}

// Makes the tokens; each is shown at once unless `json`.
absl::StatusOr<std::vector<int32_t>> Generate(const GenerateRequest& request, SavedModel* model,
                                              absl::Span<const int32_t> prompt, bool bytes,
                                              bool json) {
  TextWriter writer(&model->plan(), model->executor());
  TokenSampler sampler(request.temperature(), request.top_k(), request.seed());
  LS_ASSIGN_OR_RETURN(absl::Span<const float> logits, writer.Begin(prompt));
  std::vector<int32_t> made;
  while (static_cast<int64_t>(made.size()) < request.tokens()) {
    const int32_t token = sampler.Pick(logits, static_cast<int64_t>(made.size()));
    made.push_back(token);
    if (!json) {
      LS_RETURN_IF_ERROR(Show(bytes ? TextOf({token}) : absl::StrCat(" ", token)));
    }
    if (static_cast<int64_t>(made.size()) == request.tokens()) break;
    LS_ASSIGN_OR_RETURN(logits, writer.Append(token));
  }
  return made;
}

}  // namespace

absl::Status AnswerGenerate(const GenerateRequest& request, bool json) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<SavedModel> model,
                      SavedModel::Open(request.model(), request.threads(), request.device(),
                                       /*block=*/1, /*decode=*/true));
  const bool bytes = model->config().data().has_text();
  LS_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptTokens(request.prompt(), bytes));
  if (!json) {
    LS_RETURN_IF_ERROR(Show(bytes ? request.prompt() : absl::StrJoin(prompt, " ")));
  }
  const absl::Time start = Clock::Real()->Now();
  LS_ASSIGN_OR_RETURN(const std::vector<int32_t> made,
                      Generate(request, model.get(), prompt, bytes, json));
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  if (json) return Show(Answer(request, bytes, made, seconds));
  if (!bytes || made.empty() || made.back() != kLineEnd) LS_RETURN_IF_ERROR(Show("\n"));
  if (!request.quiet()) {
    std::fprintf(stderr, "%zu tokens in %.2f s, %.0f a second\n", made.size(), seconds,
                 seconds > 0 ? static_cast<double>(made.size()) / seconds : 0.0);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
