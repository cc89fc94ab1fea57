// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::launcher {

std::string Joined(std::span<const std::string> lines) {
  size_t bytes = lines.size();
  for (const std::string& line : lines) bytes += line.size();
  std::string text;
  text.reserve(bytes);
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

void LineSplitter::Feed(std::string_view chunk, std::vector<std::string>* lines) {
  while (!chunk.empty()) {
    const size_t end = chunk.find('\n');
    const size_t room = kMaxLine - partial_.size();
    const size_t take = std::min({end, chunk.size(), room});
    partial_.append(chunk.substr(0, take));
    chunk.remove_prefix(take);
    if (!chunk.empty() && chunk.front() == '\n') {
      chunk.remove_prefix(1);
      End(lines);
    } else if (partial_.size() == kMaxLine) {
      const size_t state = partial_.rfind('\r') + 1;  // npos + 1 is 0
      was_cut_ = was_cut_ || state > 0;
      std::string rest = state > 0 ? partial_.substr(state) : "";
      partial_.resize(partial_.size() - rest.size());
      lines->push_back(std::exchange(partial_, std::move(rest)));
    }
  }
}

void LineSplitter::End(std::vector<std::string>* lines) {
  while (partial_.ends_with('\r')) partial_.pop_back();
  lines->push_back(std::exchange(partial_, ""));
  was_cut_ = false;
}

void LineSplitter::Finish(std::vector<std::string>* lines) {
  if (!partial_.empty()) End(lines);
}

std::string_view LastState(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
}

std::string RedrawnStates::Take(const LineSplitter& splitter, absl::Time now) {
  if (!splitter.redrawn()) {
    due_ = absl::InfiniteFuture();
    return "";
  }
  if (due_ == absl::InfiniteFuture()) due_ = now + kEvery;
  if (now < due_) return "";
  due_ = now + kEvery;
  return std::string(LastState(splitter.partial()));
}

void LastLines::Add(bool is_stderr, const std::string& line) {
  if (IsRedrawnOn(line)) return;
  std::deque<std::string>& lines = lines_[is_stderr ? 1 : 0];
  if (lines.size() == kLines) lines.pop_front();
  const std::string shown(LastState(line));
  lines.push_back(shown.size() <= kMaxLine ? shown : shown.substr(0, kMaxLine) + "...");
}

std::vector<std::string> LastLines::Get() const {
  const std::deque<std::string>& lines = lines_[lines_[1].empty() ? 0 : 1];
  std::vector<std::string> result;
  for (const std::string& line : lines) result.push_back(ToUtf8(line));
  return result;
}

void LogFile::Use(UniqueFd fd, std::string path) {
  fd_ = std::move(fd);
  path_ = std::move(path);
  missing_ = 0;
}

void LogFile::CutOff(size_t bytes) const {
  struct stat file {};
  const auto torn = static_cast<off_t>(bytes);
  // Where that fails, too, the next line is written behind the part.
  if (torn > 0 && ::fstat(fd_.get(), &file) == 0 && file.st_size >= torn) {
    (void)!::ftruncate(fd_.get(), file.st_size - torn);
  }
}

int LogFile::Write(std::string_view text, size_t* written) {
  for (*written = 0; *written < text.size();) {
    const ssize_t n = ::write(fd_.get(), text.data() + *written, text.size() - *written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      const std::string_view there = text.substr(0, *written);
      *written = there.rfind('\n') + 1;  // npos + 1 is 0
      CutOff(there.size() - *written);
      return error;
    }
    *written += static_cast<size_t>(n);
  }
  return 0;
}

int LogFile::SayMissing() {
  if (missing_ == 0 || !fd_.valid()) return 0;
  size_t written = 0;
  const int error = Write(absl::StrCat("[", missing_, missing_ == 1 ? " line is" : " lines are",
                                       " missing here: the disk was full]\n"),
                          &written);
  if (error == 0) missing_ = 0;
  return error;
}

absl::Status LogFile::Append(std::string_view lines, size_t* logged) {
  const auto count = [](std::string_view text) {
    return static_cast<size_t>(std::ranges::count(text, '\n'));
  };
  if (logged != nullptr) *logged = 0;
  if (!fd_.valid()) return absl::OkStatus();
  const bool was_full = missing_ > 0;
  size_t written = 0;
  int error = SayMissing();
  if (error == 0) error = Write(lines, &written);
  const size_t there = count(lines.substr(0, written));
  if (logged != nullptr) *logged = there;
  if (error == 0) return absl::OkStatus();
  const bool full = error == ENOSPC || error == EDQUOT;
  if (full) {
    missing_ += static_cast<int64_t>(count(lines) - there);
  } else {
    fd_.reset();
  }
  if (full && was_full) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("cannot write ", path_, " (the job goes on without it",
                                         full ? ", until there is room)" : ")"));
}

void ForwardBudget::Fill(absl::Time now) {
  if (filled_ != absl::InfinitePast() && now > filled_) {
    left_ = std::min(static_cast<double>(capacity_),
                     left_ + absl::ToDoubleSeconds(now - filled_) * static_cast<double>(rate_));
  }
  filled_ = now;
}

bool ForwardBudget::Take(int64_t bytes) {
  if (static_cast<double>(bytes) > left_) return false;
  left_ -= static_cast<double>(bytes);
  return true;
}

}  // namespace lockstep::launcher
