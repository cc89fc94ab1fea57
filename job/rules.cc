// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "job/meaning/workers.h"
#include "job/nearest_name.h"
#include "job/resolve.h"
#include "job/rules_of_a_part.h"
#include "job/schema.h"

namespace lockstep::job {
namespace {

class Rules : public RulesOfAPart {
 public:
  using RulesOfAPart::RulesOfAPart;

  void Check() {
    if (spec_.queue() != "default") {
      Error({"queue"}, absl::StrCat("'queue' is '", spec_.queue(),
                                    "': queues of other names are not in this version; leave it "
                                    "out, or write default"));
    }
    CheckVariables();
    CheckNccl();
    CheckEngineRules(spec_, [this](const std::string& path, std::string message) {
      Error({path}, std::move(message));
    });
    if (spec_.resources().cudnn() == "always" && spec_.resources().matmul() == "library") {
      Error({"resources.cudnn"},
            "'resources.cudnn' always takes what is measured, and 'resources.matmul' library "
            "measures nothing: set that to measured, or this to never");
    }
    if (!spec_.profile().steps().empty() &&
        (spec_.debug().interpret() || !spec_.debug().dump_tensors().empty())) {
      Error({"debug", "profile"},
            "'profile' and 'debug' go one at a time: looking into values would be measured too");
    }
    if (spec_.has_train()) {
      CheckBatch();
      CheckTraining();
    }
    if (spec_.has_run()) CheckRun();
  }

 private:
  void CheckBatch();
  void CheckTraining();
  void CheckGuesses();
  void CheckContext();
  void CheckSchedule();
  void CheckControls();
  void CheckRecompute();
  void CheckPrecision();
  void CheckZero();
  void CheckVariables();
  void CheckNccl();
  void CheckRun();
};

// What the engine takes: parts of a step, and samples of a part.
constexpr int64_t kMostParts = 4096;
constexpr int64_t kMostSamples = int64_t{1} << 24;

// "; 255 or 258 would do", the multiples next to `value`.
std::string Neighbours(int64_t value, int64_t divisor) {
  const int64_t below = value / divisor * divisor;
  return below > 0 ? absl::StrCat("; ", below, " or ", below + divisor, " would")
                   : absl::StrCat("; ", divisor, " would");
}

void Rules::CheckBatch() {
  const Train& train = spec_.train();
  const int64_t batch = train.global_batch(), shards = train.shards();
  const int64_t accumulate = train.accumulate();
  if (batch < 1 || shards < 1 || accumulate < 1) return;  // reported already
  if (batch % shards != 0) {
    const std::string origin = IsWritten("train.shards") ? "" : " (nodes x nproc_per_node)";
    Error({"train.global_batch"},
          absl::StrCat("'train.global_batch' ", batch, " does not divide into ", shards, " shards",
                       origin, Neighbours(batch, shards)));
  } else if (batch / shards % accumulate != 0) {
    Error({"train.accumulate"},
          absl::StrCat("'train.accumulate' ", accumulate, " does not divide the ", batch / shards,
                       " samples of a shard (global_batch / shards)"));
  } else if (shards * accumulate > kMostParts) {
    Error({"train.accumulate", "train.shards"},
          absl::StrCat("'train.shards' ", shards, " x 'train.accumulate' ", accumulate, " is ",
                       shards * accumulate, ": a step has at most ", kMostParts, " parts"));
  } else if (batch / shards / accumulate > kMostSamples) {
    Error(
        {"train.global_batch"},
        absl::StrCat("'train.global_batch' ", batch, " is ", batch / shards / accumulate,
                     " samples at once (global_batch / shards / accumulate), and at most ",
                     kMostSamples, " are computed at once; more shards or 'accumulate' divide it"));
  }
}

void Rules::CheckTraining() {
  const Train& train = spec_.train();
  const std::vector<std::string>& supported = SupportedPrecisions();
  const std::string& precision = train.precision();
  if (std::find(supported.begin(), supported.end(), precision) == supported.end()) {
    Error({"train.precision"}, absl::StrCat("'train.precision': unknown precision",
                                            Suggest(precision, supported, "known are")));
  }
  CheckGuesses();
  CheckContext();
  CheckPrecision();
  CheckZero();
  CheckSchedule();
  CheckControls();
  if (const Sgd& sgd = train.optimizer().sgd();
      sgd.nesterov() && (sgd.momentum() <= 0 || sgd.dampening() != 0)) {
    Error({"train.optimizer.sgd.nesterov"},
          "'train.optimizer.sgd.nesterov' needs a momentum above 0 and no dampening");
  }
  if (const Tokens& tokens = train.data().tokens();
      tokens.train().empty() != tokens.test().empty() &&
      (tokens.train().empty() || train.eval().every() != "never")) {
    Error({"train.data.tokens"},
          "'train.data.tokens' needs both 'train' and 'test', or neither; "
          "'test' may be left out when 'train.eval.every' is never");
  }
  if (train.data().text().has_test_fraction() && train.data().text().test_fraction() == 0 &&
      train.eval().every() != "never") {
    Error({"train.data.text.test_fraction"},
          "'train.data.text.test_fraction' 0 leaves nothing for the evaluation; set "
          "'train.eval.every' to never");
  }
  if (train.data().has_npy() && train.eval().every() != "never" &&
      (train.data().npy().test_inputs().empty() || train.data().npy().test_labels().empty())) {
    Error({"train.data.npy"},
          "'train.data.npy' needs 'test_inputs' and 'test_labels' for the evaluation; or set "
          "'train.eval.every' to never");
  }
  if (const Npy& npy = train.data().npy(); npy.has_padding() && npy.padding() >= npy.vocab()) {
    Error({"train.data.npy.padding"},
          npy.vocab() == 0
              ? std::string("'train.data.npy.padding' is a token: it goes with 'vocab'")
              : absl::StrCat("'train.data.npy.padding' is ", npy.padding(),
                             ": it must be a token, below 'vocab' ", npy.vocab()));
  }
  if (train.data().has_csv() && train.eval().every() != "never" &&
      train.data().csv().test().empty()) {
    Error({"train.data.csv"},
          "'train.data.csv' needs 'test' for the evaluation; or set 'train.eval.every' to never");
  }
  if (train.data().has_idx() && train.eval().every() != "never") {
    for (const char* name : {"test_images", "test_labels"}) {
      const std::string path = absl::StrCat("train.data.idx.", name);
      if (IsWritten(path)) continue;
      Error({path}, absl::StrCat("'train.data.idx' needs '", name,
                                 "' for the evaluation; or set 'train.eval.every' to never"));
    }
  }
}

// An encoder sees the whole sample, so it learns nothing from guessing what stands in it.
void Rules::CheckGuesses() {
  const Train& train = spec_.train();
  const Data& data = train.data();
  if (train.model().has_bert() && data.has_text() && data.text().masked() == 0) {
    Error({"train.data.text.masked", "train.data.text"},
          "'train.model.bert' sees the byte that it is to guess: set 'train.data.text.masked' "
          "(0.15)");
  }
  if (train.model().has_bert() && data.has_tokens()) {
    Error({"train.data.tokens"},
          "'train.model.bert' sees the token that it is to guess, and 'train.data.tokens' hides "
          "none: train a gpt, or give 'train.data.npy' or 'train.data.text' with 'masked'");
  }
  // Three tokens of such a sample are no bytes, and each of its halves has a byte.
  constexpr int64_t kLeastMasked = 5;
  if (data.text().masked() > 0 && data.text().length() < kLeastMasked) {
    Error({"train.data.text.length"},
          absl::StrCat("'train.data.text.length' ", data.text().length(),
                       ": with 'masked' it is from ", kLeastMasked, " on"));
  }
  if (train.model().has_gpt() && data.text().masked() > 0) {
    Error({"train.data.text.masked"},
          "'train.data.text.masked' is for bert, gpt guesses the next byte: leave it out");
  }
}

// Each position of a sample has its row in the model's table. How long samples of other data are
// their files say.
void Rules::CheckContext() {
  const Model& model = spec_.train().model();
  const Data& data = spec_.train().data();
  const bool gpt = model.has_gpt();
  const int64_t context = gpt ? model.gpt().context() : model.bert().context();
  const int64_t length = data.has_text() ? data.text().length() : data.tokens().length();
  if (context == 0 || context >= length) return;
  const std::string path = absl::StrCat("train.model.", gpt ? "gpt" : "bert", ".context");
  Error({path}, absl::StrCat("'", path, "' ", context, " is below the ", length,
                             " tokens of a sample; raise it, or lower 'train.data.",
                             data.has_text() ? "text" : "tokens", ".length'"));
}

// A device that is "auto" may be either.
void Rules::CheckRecompute() {
  if (spec_.train().recompute() != "auto") return;
  const Resources& resources = spec_.resources();
  const bool gpu = absl::StartsWith(resources.device(), "cuda"), cpu = resources.device() == "cpu";
  if (!gpu && resources.memory() > 0) return;
  if (!cpu && resources.gpu_memory() > 0) return;
  Error({"train.recompute"},
        absl::StrCat("'train.recompute' auto needs ",
                     gpu   ? "'resources.gpu_memory'"
                     : cpu ? "'resources.memory'"
                           : "'resources.memory', or on a GPU 'resources.gpu_memory'",
                     ", into which the plan is to fit"));
}

void Rules::CheckPrecision() {
  const Train& train = spec_.train();
  const std::string& precision = train.precision();
  if (absl::StartsWith(precision, "pure_") && train.has_ema()) {
    Error({"train.ema"}, absl::StrCat("'train.ema' averages fp32 weights, which precision ",
                                      precision, " does not have; use ", precision.substr(5)));
  }
  if (train.fp8() && precision != "bf16") {
    Error({"train.fp8"}, absl::StrCat("'train.fp8' goes with precision bf16, not with ", precision,
                                      "; set 'train.precision' to bf16, or leave it out"));
  }
  CheckRecompute();
  if (!train.has_loss_scale()) return;
  if (precision != "fp16" && precision != "pure_fp16") {
    Error({"train.loss_scale"},
          absl::StrCat("'train.loss_scale' goes with precision fp16 or pure_fp16; ", precision,
                       " has the range of fp32"));
  }
  const LossScale& scale = train.loss_scale();
  for (const auto& [name, value] : {std::pair("init_scale", scale.init_scale()),
                                    std::pair("growth_factor", scale.growth_factor()),
                                    std::pair("backoff_factor", scale.backoff_factor())}) {
    int exponent = 0;
    if (value <= 0 || std::frexp(value, &exponent) == 0.5) continue;  // below 0: reported already
    Error({absl::StrCat("train.loss_scale.", name)},
          absl::StrCat("'train.loss_scale.", name, "' ", value, " is no power of two; ",
                       std::ldexp(1.0, exponent - 1), " and ", std::ldexp(1.0, exponent), " are"));
  }
}

// The optimizer's state in parts, or elsewhere; gradients on their way.
void Rules::CheckZero() {
  const Train& train = spec_.train();
  if (spec_.resources().offload_optimizer() && train.optimizer().has_muon()) {
    Error({"resources.offload_optimizer"},
          "'resources.offload_optimizer' updates parts of tensors, and muon needs whole ones; use "
          "another optimizer, or leave it out");
  }
  const Passes& passes = train.passes();
  if (passes.whole_step_graph() && passes.has_step_graph() && !passes.step_graph()) {
    Error({"train.passes.whole_step_graph"},
          "'train.passes.whole_step_graph' puts the update into the recording that "
          "'train.passes.step_graph' makes, which is false; leave one of them out");
  }
  if (train.gradient_compression() == "bf16" && spec_.nccl().use() == "always") {
    Error({"train.gradient_compression"},
          "'train.gradient_compression' rounds sums that workers make in their hosts' memory, and "
          "'nccl.use' is always; leave one of them out");
  }
  if (train.zero_stage() == 0) return;
  const Optimizer& optimizer = train.optimizer();
  if (optimizer.has_lamb() || optimizer.has_muon()) {
    Error({"train.zero_stage"},
          absl::StrCat("'train.zero_stage' 1 updates parts of tensors, and ",
                       optimizer.has_lamb() ? "lamb" : "muon",
                       " needs whole ones; use sgd, adam or adamw, or leave it out"));
  }
  if (absl::StartsWith(train.precision(), "pure_")) {
    Error({"train.zero_stage"},
          absl::StrCat("'train.zero_stage' 1 needs fp32 weights, which precision ",
                       train.precision(), " does not have; use ", train.precision().substr(5)));
  }
}

// Checks what averages and evaluations need of each other.
void Rules::CheckControls() {
  const Train& train = spec_.train();
  const auto check = [&](const std::string& path, const std::string& metric) {
    if (train.eval().every() == "never") {
      Error({path}, absl::StrCat("'", path, "' needs evaluations; 'train.eval.every' is never"));
    }
    if (absl::StartsWith(metric, "ema_") && !train.has_ema()) {
      Error({path + ".metric"}, absl::StrCat("'", path, ".metric' ", metric, " needs 'train.ema'"));
    }
  };
  if (train.has_early_stop()) check("train.early_stop", train.early_stop().metric());
  if (train.has_best()) check("train.best", train.best().metric());
}

// Returns whether the schedule follows the share of the run that is done, and so needs steps after
// its warm-up. The others are what they are in a longer run.
bool NeedsTheLength(const Schedule& schedule) {
  return schedule.has_cosine() || schedule.has_linear() || schedule.has_polynomial() ||
         schedule.has_one_cycle() || schedule.has_wsd();
}

void Rules::CheckSchedule() {
  const Schedule& schedule = spec_.train().schedule();
  const int64_t steps = spec_.train().steps(), warmup = schedule.warmup_steps();
  const int64_t decay = schedule.wsd().decay_steps();
  if (steps > 0 && warmup >= steps && NeedsTheLength(schedule)) {
    const auto* const kind = schedule.GetDescriptor()->FindFieldByNumber(schedule.kind_case());
    Error({"train.schedule.warmup_steps"},
          absl::StrCat("'train.schedule.warmup_steps' ", warmup, ": a ", kind->name(),
                       " schedule needs more than the ", steps, " steps of the job"));
  } else if (steps > 0 && schedule.has_wsd() && decay > steps - warmup) {
    Error({"train.schedule.wsd.decay_steps"},
          absl::StrCat("'train.schedule.wsd.decay_steps' ", decay, " and the warm-up of ", warmup,
                       " are more than the ", steps, " steps of the job"));
  }
  const auto& milestones = schedule.step().milestones();
  const auto late =
      std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>());
  if (late == milestones.end()) return;
  Error({"train.schedule.step.milestones"},
        absl::StrCat("'train.schedule.step.milestones' must rise, and ", late[1], " comes after ",
                     late[0]));
}

void Rules::CheckVariables() {
  for (const auto& [name, value] : spec_.secrets()) {
    if (!spec_.env().contains(name)) continue;
    reporter_.Error(written_.find("env." + name)->second->key.place,
                    absl::StrCat("'", name, "' is in 'env' and in 'secrets'; keep one"));
  }
}

// Refuses what the built-in engine alone can do: it is refused, not left undone in silence.
void Rules::CheckRun() {
  const std::string& verify = spec_.verify_replicas();
  const Debug& debug = spec_.debug();
  const std::pair<const char*, bool> keys[] = {
      {"checkpoint", spec_.has_checkpoint()},
      {"profile", !spec_.profile().steps().empty()},
      {"debug", debug.interpret() || !debug.dump_tensors().empty()},
      {"nccl", spec_.has_nccl()},
      {"verify_replicas", !verify.empty() && verify != "never"},
      {"resources.standby", spec_.resources().standby() > 0},
      {"resources.offload_optimizer", spec_.resources().offload_optimizer()},
  };
  for (const auto& [key, given] : keys) {
    if (!given) continue;
    Error({key}, absl::StrCat("'", key, "' goes with 'train'; what 'run' starts has ways of its ",
                              "own, leave it out"));
  }
}

void Rules::CheckNccl() {
  const Nccl& nccl = spec_.nccl();
  if (nccl.order() == "fastest" && spec_.has_train() && spec_.train().reproducible()) {
    Error({"nccl.order"},
          "'nccl.order' fastest gives other bits with other numbers of workers: set "
          "'train.reproducible' to false, or leave it at fixed");
  }
  const auto ordered = [&](const char* least, bool has_least, int low, const char* most,
                           bool has_most, int high) {
    if (!has_least || !has_most || low <= high) return;
    Error({absl::StrCat("nccl.", least)},
          absl::StrCat("'nccl.", least, "' ", low, " is more than 'nccl.", most, "' ", high));
  };
  ordered("min_ctas", nccl.has_min_ctas(), nccl.min_ctas(), "max_ctas", nccl.has_max_ctas(),
          nccl.max_ctas());
  ordered("min_nchannels", nccl.has_min_nchannels(), nccl.min_nchannels(), "max_nchannels",
          nccl.has_max_nchannels(), nccl.max_nchannels());
  for (const auto& [name, value] : nccl.env()) {
    const Place place = written_.find("nccl.env." + name)->second->key.place;
    if (!absl::StartsWith(name, "NCCL_")) {
      reporter_.Error(place, absl::StrCat("'nccl.env' is for NCCL's variables (NCCL_...); '", name,
                                          "' goes into 'env'"));
      continue;
    }
    const std::string key = absl::AsciiStrToLower(name.substr(5));
    if (Nccl::descriptor()->FindFieldByName(key) == nullptr) continue;
    reporter_.Error(place, absl::StrCat("'", name, "' is the key '", key,
                                        "' of 'nccl': write it "
                                        "there, where it is checked"));
  }
}

}  // namespace

void CheckRules(const JobSpec& spec, const Written& written, const WorkerFlags& flags,
                Reporter* reporter) {
  CheckWorkerRules(spec, written, flags, reporter);
  Rules(spec, written, reporter).Check();
}

}  // namespace lockstep::job
