// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit.h"

#include <bit>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "coordinator/core/access.h"

namespace lockstep::coordinator {
namespace {

// Callers choose some of the texts, and a long one would push all other lines out.
constexpr size_t kMostText = 1024;
// Callers and what they did, each counted apart. Those that come when there are so many are counted
// together, by what they do.
constexpr size_t kMostRepeated = 4096;
constexpr absl::Duration kForgottenAfter = absl::Hours(24);
// Those to forget are looked for so often at most.
constexpr absl::Duration kForgetEvery = absl::Minutes(1);

std::string Clipped(absl::string_view text) {
  if (text.size() <= kMostText) return std::string(text);
  size_t end = kMostText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (clipped: ", text.size(), " bytes)");
}

std::string Line(const AuditEntry& entry, const std::string& outcome, absl::string_view why,
                 absl::Time now) {
  JsonObject line;
  line.Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()));
  line.Add("user", Clipped(entry.who.user()));
  line.Add("role", RoleName(entry.who.role()));
  line.Add("peer", entry.who.peer());
  line.Add("token", entry.who.token_id());
  line.Add("what", entry.what);
  line.Add("on", Clipped(entry.on));
  line.Add("detail", Clipped(entry.detail));
  line.Add("outcome", outcome);
  line.Add("why", Clipped(why));
  return line.Done();
}

// The line in the place of those that were not written.
std::string LostLine(int64_t lines, absl::Time now) {
  AuditEntry entry;
  entry.what = "lose_lines";
  entry.detail = absl::StrCat(lines, lines == 1 ? " line" : " lines");
  return AuditLine(entry,
                   absl::DataLossError("the file system refused them, or did not answer while too "
                                       "many lines waited for it: the coordinator's log has them"),
                   now);
}

// What a request is refused with whose line was not written for this reason: asked again at once it
// would be refused again, unless the file system does not answer.
absl::Status Refusal(const absl::Status& why) {
  if (absl::IsUnavailable(why) || absl::IsResourceExhausted(why)) return why;
  return absl::FailedPreconditionError(why.message());
}

}  // namespace

std::string AuditLine(const AuditEntry& entry, const absl::Status& outcome, absl::Time now) {
  return Line(entry, absl::AsciiStrToLower(absl::StatusCodeToString(outcome.code())),
              outcome.message(), now);
}

std::string AskedLine(const AuditEntry& entry, absl::Time now) {
  return Line(entry, "asked", "", now);
}

Audit::Audit(std::string file, Clock* clock, Clock* wall, AuditWriter::Limits limits)
    : clock_(clock),
      wall_(wall),
      writer_(file.empty()
                  ? nullptr
                  : std::make_unique<AuditWriter>(std::move(file), limits, [wall](int64_t lines) {
                      return LostLine(lines, wall->Now());
                    })) {}

void Audit::Note(const AuditEntry& entry, const absl::Status& outcome) {
  if (writer_ != nullptr) writer_->Add(AuditLine(entry, outcome, wall_->Now()));
}

void Audit::NoteRepeated(AuditEntry entry, const absl::Status& outcome) {
  if (writer_ == nullptr) return;
  int64_t times = 0;
  bool shared = false;
  {
    absl::MutexLock lock(&mu_);
    times = CountAgain(entry, clock_->Now(), &shared);
  }
  if (!std::has_single_bit(static_cast<uint64_t>(times))) return;
  if (times > 1) entry.detail = absl::StrCat(times, " times");
  if (shared) {
    absl::StrAppend(&entry.detail, times > 1 ? ", " : "", "by callers that are not told apart");
  }
  Note(entry, outcome);
}

int64_t Audit::CountAgain(const AuditEntry& entry, absl::Time now, bool* shared) {
  const Requester& who = entry.who;
  std::string key =
      absl::StrCat(entry.what, "\n", who.token_id(), "\n", who.peer(), "\n", who.user());
  if (repeated_.size() >= kMostRepeated && !repeated_.contains(key)) {
    if (now >= forget_at_) {
      forget_at_ = now + kForgetEvery;
      std::erase_if(repeated_,
                    [&](const auto& one) { return now >= one.second.last + kForgottenAfter; });
    }
    *shared = repeated_.size() >= kMostRepeated;
    if (*shared) key = entry.what;
  }
  Repeated& repeated = repeated_[std::move(key)];
  if (now >= repeated.last + kForgottenAfter) repeated.times = 0;
  repeated.last = now;
  return ++repeated.times;
}

absl::Status Audit::NoteAsked(const AuditEntry& entry, const std::string& call) {
  if (writer_ == nullptr) return absl::OkStatus();
  const AuditWriter::Outcome written = writer_->Write(AskedLine(entry, wall_->Now()));
  if (written.status.ok()) return absl::OkStatus();
  if (written.may_come) {
    // One that is refused now is not to be taken later for one that was carried out.
    Note(entry, absl::AbortedError(written.status.message()));
    return written.status;
  }
  // There is no line that this one could be the outcome of.
  AuditEntry refused = entry;
  refused.what = call;
  absl::Status why = Refusal(written.status);
  NoteRepeated(std::move(refused), why);
  return why;
}

absl::Status Audit::AwaitWritten() {
  return writer_ == nullptr ? absl::OkStatus() : writer_->AwaitWritten();
}

}  // namespace lockstep::coordinator
