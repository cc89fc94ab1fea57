// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::launcher {

void LineSplitter::Feed(std::string_view chunk, std::vector<std::string>* lines) {
  while (!chunk.empty()) {
    const size_t end = chunk.find('\n');
    const size_t room = kMaxLine - partial_.size();
    const size_t take = std::min({end, chunk.size(), room});
    partial_.append(chunk.substr(0, take));
    chunk.remove_prefix(take);
    const bool at_end = !chunk.empty() && chunk.front() == '\n';
    if (at_end) chunk.remove_prefix(1);
    if (at_end && partial_.ends_with('\r')) partial_.pop_back();
    if (at_end || partial_.size() == kMaxLine) {
      lines->push_back(std::move(partial_));
      partial_.clear();
    }
  }
}

void LineSplitter::Finish(std::vector<std::string>* lines) {
  if (!partial_.empty()) lines->push_back(std::move(partial_));
  partial_.clear();
}

void LastLines::Add(bool is_stderr, const std::string& line) {
  std::deque<std::string>& lines = lines_[is_stderr ? 1 : 0];
  if (lines.size() == kLines) lines.pop_front();
  lines.push_back(line.size() <= kMaxLine ? line : line.substr(0, kMaxLine) + "...");
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
}

absl::Status LogFile::Append(const std::vector<std::string>& lines) {
  if (!fd_.valid()) return absl::OkStatus();
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      absl::Status failed =
          ErrnoStatus(errno, absl::StrCat("cannot write ", path_, " (the job goes on without it)"));
      fd_.reset();
      return failed;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
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

namespace {

// The length of the UTF-8 character at the start of `text`, 0 if there is none (RFC 3629, section
// 4).
size_t CharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // legal second bytes
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string ToUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) {
      result.push_back('?');
    } else {
      result.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

}  // namespace lockstep::launcher
