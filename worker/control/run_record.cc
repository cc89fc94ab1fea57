// SPDX-License-Identifier: Apache-2.0
#include "worker/control/run_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kEveryStepUntil = 100;
constexpr int64_t kLinesOfARun = 1000;

}  // namespace

void RunRecord::SetWriter(bool writes, bool remembered) {
  Write();
  std::string metrics, ledger;
  {
    absl::MutexLock lock(&mu_);
    writes_ = writes;
    if (!remembered) return;
    for (const Piece& piece : pieces_) {
      metrics += piece.metrics;
      ledger += piece.ledger;
    }
    pieces_.clear();
  }
  absl::MutexLock lock(&file_mu_);
  Append(&metrics_file_, metrics);
  Append(&ledger_file_, ledger);
}

bool RunRecord::WantsStep(int64_t step) const {
  if (step <= kEveryStepUntil || step == total_steps_) return true;
  return step % std::max<int64_t>(1, total_steps_ / kLinesOfARun) == 0;
}

void RunRecord::Step(int64_t step, double epoch, double loss, double learning_rate, int64_t samples,
                     double loss_scale, bool overflow) {
  JsonObject line;
  line.Add("kind", "step").Add("step", step).Add("epoch", epoch).Add("loss", loss);
  line.Add("lr", learning_rate).Add("samples", samples);
  if (loss_scale > 0) line.Add("loss_scale", loss_scale).Add("skipped", overflow);
  absl::MutexLock lock(&mu_);
  absl::StrAppend(&metrics_, line.Done(), "\n");
}

namespace {

void AddNumbers(const EvalResult& eval, JsonObject* object) {
  object->Add("loss", eval.loss()).Add("accuracy", eval.accuracy());
  object->Add("top5_accuracy", eval.top5_accuracy());
}

}  // namespace

void RunRecord::Eval(const EvalResult& eval) {
  JsonObject line;
  line.Add("kind", "eval").Add("step", eval.step()).Add("epoch", eval.epoch());
  AddNumbers(eval, &line);
  line.Add("samples", eval.samples());
  if (eval.has_ema()) {
    JsonObject average;
    AddNumbers(eval.ema(), &average);
    line.Raw("ema", average.Done());
  }
  absl::MutexLock lock(&mu_);
  absl::StrAppend(&metrics_, line.Done(), "\n");
}

void RunRecord::Ledger(int64_t step, int shard, int64_t generation, uint64_t ids_hash) {
  char record[24];
  const int32_t shard32 = shard, generation32 = static_cast<int32_t>(generation);
  std::memcpy(record, &step, 8);
  std::memcpy(record + 8, &shard32, 4);
  std::memcpy(record + 12, &generation32, 4);
  std::memcpy(record + 16, &ids_hash, 8);
  absl::MutexLock lock(&mu_);
  ledger_.append(record, sizeof(record));
}

void RunRecord::Write() {
  absl::MutexLock files(&file_mu_);
  std::string metrics, ledger;
  {
    absl::MutexLock lock(&mu_);
    metrics.swap(metrics_);
    ledger.swap(ledger_);
    if (!writes_) {
      if (metrics.empty() && ledger.empty()) return;  // nothing for others to make room for
      pieces_.push_back({std::move(metrics), std::move(ledger)});
      if (pieces_.size() > kPieces) pieces_.pop_front();
      return;
    }
  }
  Append(&metrics_file_, metrics);
  Append(&ledger_file_, ledger);
}

void RunRecord::NoteFailing(Output* output, const absl::Status& why) {
  if (std::exchange(output->failing, true)) return;
  LS_LOG_WARNING << why.message() << "; training goes on, and it is tried again: make room there";
}

void RunRecord::Append(Output* output, const std::string& bytes) {
  // Whole batches alone are left out, so that lines and records stay whole.
  if (output->kept.size() + bytes.size() <= kMostKept) {
    output->kept += bytes;
  } else {
    output->lossy = true;
  }
  const std::string path = absl::StrCat(run_dir_, "/", output->name);
  if (!output->kept.empty() && !output->fd.valid()) {
    output->fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!output->fd.valid()) {
      return NoteFailing(output, ErrnoStatus(errno, absl::StrCat("open ", path)));
    }
  }
  size_t done = 0;
  while (done < output->kept.size()) {
    const ssize_t n =
        ::write(output->fd.get(), output->kept.data() + done, output->kept.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      NoteFailing(output, ErrnoStatus(errno, absl::StrCat("write ", path)));
      break;
    }
    done += static_cast<size_t>(n);
  }
  output->kept.erase(0, done);
  if (!output->kept.empty() || !std::exchange(output->failing, false)) return;
  LS_LOG_INFO << path << " is written again"
              << (std::exchange(output->lossy, false) ? "; some of it is missing" : "");
}

}  // namespace lockstep::worker
