// SPDX-License-Identifier: Apache-2.0
#include "worker/control/run_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kEveryStepUntil = 100;
constexpr int64_t kLinesOfARun = 1000;
constexpr absl::Duration kLockPoll = absl::Milliseconds(2);

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

// The bytes up to the last end of a line or record among `bytes`.
size_t WholeBytes(std::string_view bytes, size_t record_bytes) {
  if (record_bytes > 0) return bytes.size() - bytes.size() % record_bytes;
  return bytes.rfind('\n') + 1;  // npos + 1 is 0
}

// How many lines or records there are.
int64_t CountOf(std::string_view bytes, size_t record_bytes) {
  if (record_bytes > 0) return static_cast<int64_t>(bytes.size() / record_bytes);
  return std::ranges::count(bytes, '\n');
}

std::string Counted(int64_t count, size_t record_bytes) {
  const char* const one = record_bytes > 0 ? "record" : "line";
  return absl::StrCat(count, " ", one, count == 1 ? " is" : "s are");
}

// Cuts off the half line or record of one who was killed or whose disk was full, so that what
// follows is whole. Returns the bytes that are left. Errors: those of reading and cutting.
absl::StatusOr<off_t> CutHalf(int fd, size_t record_bytes, const std::string& path) {
  const off_t bytes = ::lseek(fd, 0, SEEK_END);
  if (bytes < 0) return ErrnoStatus(errno, absl::StrCat("seek ", path));
  off_t whole = 0;
  if (record_bytes > 0) {
    whole = bytes - bytes % static_cast<off_t>(record_bytes);
  } else {
    LS_ASSIGN_OR_RETURN(whole, WholeLines(fd, bytes, path));
  }
  if (whole < bytes && ::ftruncate(fd, whole) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cut ", path));
  }
  return whole;
}

}  // namespace

RunRecord::~RunRecord() {
  absl::MutexLock files(&file_mu_);
  for (const Output* output : {&metrics_file_, &ledger_file_}) {
    const int64_t lost = output->lost + CountOf(output->kept, output->record_bytes);
    if (lost == 0) continue;
    LS_LOG_WARNING << PathOf(*output) << ": " << Counted(lost, output->record_bytes)
                   << " given up, which could not be written";
  }
}

void RunRecord::SetWriter(bool writes, bool remembered) {
  absl::MutexLock lock(&mu_);
  EndPiece();
  writes_ = writes;
  if (!remembered) return;
  for (const Piece& piece : pieces_) {
    owed_.metrics += piece.metrics;
    owed_.ledger += piece.ledger;
  }
  pieces_.clear();
}

bool RunRecord::Owes() const {
  absl::MutexLock lock(&mu_);
  return unwritten_ || !owed_.metrics.empty() || !owed_.ledger.empty();
}

bool RunRecord::WantsStep(int64_t step) const {
  if (step <= kEveryStepUntil || step == total_steps_) return true;
  return step % std::max<int64_t>(1, total_steps_ / kLinesOfARun) == 0;
}

void RunRecord::Step(int64_t step, double epoch, double loss, double learning_rate, int64_t samples,
                     double loss_scale, bool skipped) {
  JsonObject line;
  line.Add("kind", "step").Add("step", step).Add("epoch", epoch).Add("loss", loss);
  line.Add("lr", learning_rate).Add("samples", samples);
  if (loss_scale > 0) line.Add("loss_scale", loss_scale);
  if (loss_scale > 0 || skipped) line.Add("skipped", skipped);
  absl::MutexLock lock(&mu_);
  Collect(absl::StrCat(line.Done(), "\n"), &collected_.metrics, &collected_.lost_lines);
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
  line.Add("samples", eval.samples()).Add("targets", eval.targets());
  if (eval.has_ema()) {
    JsonObject average;
    AddNumbers(eval.ema(), &average);
    line.Raw("ema", average.Done());
  }
  absl::MutexLock lock(&mu_);
  Collect(absl::StrCat(line.Done(), "\n"), &collected_.metrics, &collected_.lost_lines);
}

void RunRecord::Ledger(int64_t step, int shard, int64_t generation, uint64_t ids_hash) {
  char record[kRecordBytes];
  const int32_t shard32 = shard, generation32 = static_cast<int32_t>(generation);
  std::memcpy(record, &step, 8);
  std::memcpy(record + 8, &shard32, 4);
  std::memcpy(record + 12, &generation32, 4);
  std::memcpy(record + 16, &ids_hash, 8);
  absl::MutexLock lock(&mu_);
  Collect({record, sizeof(record)}, &collected_.ledger, &collected_.lost_records);
}

void RunRecord::Collect(std::string_view bytes, std::string* collected, int64_t* lost) {
  if (collected->size() + bytes.size() > kMostKept) {  // the disk has taken nothing for long
    if (writes_) {
      ++*lost;
      return;
    }
    EndPiece();
  }
  collected->append(bytes);
}

void RunRecord::EndPiece() {
  if (writes_) {
    owed_.metrics += collected_.metrics;
    owed_.ledger += collected_.ledger;
    owed_.lost_lines += collected_.lost_lines;
    owed_.lost_records += collected_.lost_records;
  } else if (!collected_.metrics.empty() || !collected_.ledger.empty()) {
    // Where there is nothing, nothing makes room for it.
    pieces_.push_back(std::move(collected_));
    if (pieces_.size() > kPieces) pieces_.pop_front();
  }
  collected_ = {};
}

void RunRecord::Write() {
  absl::MutexLock files(&file_mu_);
  Piece owed;
  {
    absl::MutexLock lock(&mu_);
    EndPiece();
    owed = std::exchange(owed_, {});
    unwritten_ |= !owed.metrics.empty() || !owed.ledger.empty();
  }
  Append(&metrics_file_, owed.metrics, owed.lost_lines);
  Append(&ledger_file_, owed.ledger, owed.lost_records);
  absl::MutexLock lock(&mu_);
  unwritten_ = !metrics_file_.kept.empty() || !ledger_file_.kept.empty();
}

std::string RunRecord::PathOf(const Output& output) const {
  return absl::StrCat(run_dir_, "/", output.name);
}

void RunRecord::Append(Output* output, const std::string& bytes, int64_t lost) {
  output->kept += bytes;
  output->lost += lost;
  const std::string path = PathOf(*output);
  if (!output->kept.empty()) {
    const absl::Status written = WriteKept(path, output);
    if (!written.ok() && !std::exchange(output->failing, true)) {
      const bool locked = absl::IsDeadlineExceeded(written);
      LS_LOG_WARNING << written.message() << "; training goes on, and it is tried again: "
                     << (locked ? "see who does (lslocks)" : "make room there");
    }
  }
  if (!output->kept.empty()) {
    output->fd.reset();
    const std::string_view most = std::string_view(output->kept).substr(0, kMostKept);
    const std::string_view kept = most.substr(0, WholeBytes(most, output->record_bytes));
    output->lost +=
        CountOf(std::string_view(output->kept).substr(kept.size()), output->record_bytes);
    output->kept.resize(kept.size());
    return;
  }
  const bool again = std::exchange(output->failing, false);
  if (const int64_t missing = std::exchange(output->lost, 0); missing > 0) {
    LS_LOG_WARNING << path << " is written" << (again ? " again" : "") << ", but "
                   << Counted(missing, output->record_bytes)
                   << " missing, which could not be written in time";
  } else if (again) {
    LS_LOG_INFO << path << " is written again";
  }
}

absl::Status RunRecord::Lock(int fd, const std::string& path) const {
  const absl::Time deadline = clock_->Now() + kLockPatience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    // Where there are no locks, two ranks most probably do not write at the same time.
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (clock_->Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("write ", path, ": another process has held ",
                                                      "a lock on it for ",
                                                      absl::FormatDuration(kLockPatience)));
    }
    clock_->Sleep(kLockPoll);
  }
  return absl::OkStatus();
}

absl::Status RunRecord::WriteKept(const std::string& path, Output* output) {
  if (!output->fd.valid()) {
    output->fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!output->fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  const int fd = output->fd.get();
  // Two ranks may write: one what it owes, the other what follows.
  LS_RETURN_IF_ERROR(Lock(fd, path));
  const absl::Cleanup unlock = [fd] { ::flock(fd, LOCK_UN); };
  std::string& kept = output->kept;
  LS_ASSIGN_OR_RETURN(const off_t begin, CutHalf(fd, output->record_bytes, path));
  absl::Status status;
  size_t done = 0;
  while (status.ok() && done < kept.size()) {
    const ssize_t n = ::write(fd, kept.data() + done, kept.size() - done);
    if (n >= 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) status = ErrnoStatus(errno, absl::StrCat("write ", path));
  }
  const size_t whole = WholeBytes(std::string_view(kept).substr(0, done), output->record_bytes);
  // Where that fails, who writes next does it.
  if (whole < done) (void)!::ftruncate(fd, begin + static_cast<off_t>(whole));
  kept.erase(0, whole);
  return status;
}

}  // namespace lockstep::worker
