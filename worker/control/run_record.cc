// SPDX-License-Identifier: Apache-2.0
#include "worker/control/run_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kEveryStepUntil = 100;
constexpr int64_t kLinesOfARun = 1000;

// The bytes up to the last end of a line among the first `bytes` of a file. Errors: those of
// reading.
absl::StatusOr<off_t> WholeLines(int fd, off_t bytes, const std::string& path) {
  char piece[4096];
  for (off_t end = bytes; end > 0;) {
    const auto size = std::min<off_t>(end, sizeof(piece));
    const ssize_t n = ::pread(fd, piece, static_cast<size_t>(size), end - size);
    if (n < 0 && errno == EINTR) continue;
    if (n != size) return ErrnoStatus(n < 0 ? errno : EIO, absl::StrCat("read ", path));
    const size_t last = std::string_view(piece, static_cast<size_t>(size)).rfind('\n');
    end -= size;
    if (last != std::string_view::npos) return end + static_cast<off_t>(last) + 1;
  }
  return 0;
}

}  // namespace

void RunRecord::SetWriter(bool writes, bool remembered) {
  // Nobody writes before what was half written is looked for.
  absl::MutexLock files(&file_mu_);
  WriteCollected();
  std::string metrics, ledger;
  bool wrote;
  {
    absl::MutexLock lock(&mu_);
    wrote = std::exchange(writes_, writes);
  }
  // Others may have written meanwhile, and cut off what was half written.
  for (Output* output : {&metrics_file_, &ledger_file_}) {
    if (wrote) break;
    output->fd.reset();
    output->begun = 0;
  }
  if (!remembered) return;
  {
    absl::MutexLock lock(&mu_);
    for (const Piece& piece : pieces_) {
      metrics += piece.metrics;
      ledger += piece.ledger;
    }
    pieces_.clear();
  }
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
  char record[kRecordBytes];
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
  WriteCollected();
}

void RunRecord::WriteCollected() {
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

absl::Status RunRecord::Open(const std::string& path, Output* output) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  const off_t bytes = ::lseek(fd.get(), 0, SEEK_END);
  if (bytes < 0) return ErrnoStatus(errno, absl::StrCat("seek ", path));
  off_t whole = 0;
  if (output->record_bytes > 0) {
    whole = bytes - bytes % static_cast<off_t>(output->record_bytes);
  } else {
    LS_ASSIGN_OR_RETURN(whole, WholeLines(fd.get(), bytes, path));
  }
  if (whole < bytes && ::ftruncate(fd.get(), whole) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cut ", path));
  }
  output->fd = std::move(fd);
  return absl::OkStatus();
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
    const absl::Status opened = Open(path, output);
    if (!opened.ok()) return NoteFailing(output, opened);
  }
  size_t& done = output->begun;
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
  size_t whole = 0;
  if (output->record_bytes > 0) {
    whole = done - done % output->record_bytes;
  } else if (done > 0) {
    whole = output->kept.rfind('\n', done - 1) + 1;
  }
  output->kept.erase(0, whole);
  done -= whole;
  if (!output->kept.empty() || !std::exchange(output->failing, false)) return;
  LS_LOG_INFO << path << " is written again"
              << (std::exchange(output->lossy, false) ? "; some of it is missing" : "");
}

}  // namespace lockstep::worker
