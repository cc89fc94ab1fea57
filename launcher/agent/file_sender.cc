// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/file_sender.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "launcher/agent/account.h"
#include "launcher/agent/run_files.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostWaiting = 8;

}  // namespace

FileSender::FileSender(Settings settings)
    : settings_(std::move(settings)), thread_("agent-files", [this] { Loop(); }) {}

FileSender::~FileSender() {
  Stop(absl::ZeroDuration());
  thread_.Join();
}

std::string FileSender::Stop(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  stop_ = true;
  if (stream_ != nullptr) stream_->Cancel();
  changed_.AwaitFor(&mu_, timeout,
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return job_.empty(); });
  return job_;
}

void FileSender::Send(const SendFiles& wanted) {
  absl::MutexLock lock(&mu_);
  if (wanted_.size() < kMostWaiting) wanted_.push_back(wanted);
}

void FileSender::Loop() {
  while (true) {
    SendFiles wanted;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &FileSender::HasWork));
      if (stop_) return;
      wanted = std::move(wanted_.front());
      wanted_.pop_front();
      job_ = wanted.job_id();
    }
    Carry(wanted);
    {
      absl::MutexLock lock(&mu_);
      job_.clear();
    }
    changed_.NotifyAll();
  }
}

void FileSender::Carry(const SendFiles& wanted) {
  const std::unique_ptr<coordinator::FileStream> stream = settings_.open();
  {
    absl::MutexLock lock(&mu_);
    if (stop_) return;
    stream_ = stream.get();
  }
  const absl::Status sent = SendAll(wanted, stream.get());
  if (!absl::IsCancelled(sent)) {
    FilePiece last;
    last.set_ticket(wanted.ticket());
    last.set_end(true);
    if (!sent.ok()) {
      last.set_error(static_cast<int32_t>(sent.code()));
      last.set_error_text(std::string(sent.message()));
    }
    stream->Write(last);
  }
  const absl::Status finished = stream->Finish();
  if (!finished.ok()) {
    LS_LOG_DEBUG << "files of job " << wanted.job_id() << ": " << finished;
  }
  absl::MutexLock lock(&mu_);
  stream_ = nullptr;
}

absl::Status FileSender::SendAll(const SendFiles& wanted, coordinator::FileStream* stream) {
  std::optional<Account> account;
  if (settings_.as_users && wanted.user().empty()) {
    return absl::FailedPreconditionError(
        "this coordinator is older and does not say whose job it is: upgrade it");
  }
  if (settings_.as_users) {
    LS_ASSIGN_OR_RETURN(account, FindAccount(wanted.user(), settings_.allow_root));
  }
  AsAccount as;
  LS_RETURN_IF_ERROR(as.Become(account));
  LS_ASSIGN_OR_RETURN(const UniqueFd folder,
                      OpenRunFolder(wanted, settings_.run_dir, settings_.runs_dir));
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListRunFiles(folder.get(), wanted));
  const absl::Time begun = settings_.clock->Now();
  int64_t bytes = 0;
  const PieceSink sink = [&](const FilePiece& piece) {
    FilePiece sent = piece;
    if (bytes == 0) sent.set_ticket(wanted.ticket());
    bytes += std::max<int64_t>(1, static_cast<int64_t>(piece.data().size()));
    if (!stream->Write(sent)) return false;
    const absl::Time due =
        begun + absl::Seconds(static_cast<double>(bytes) / settings_.bytes_per_second);
    if (const absl::Duration early = due - settings_.clock->Now(); early > absl::ZeroDuration()) {
      settings_.clock->Sleep(early);
    }
    absl::MutexLock lock(&mu_);
    return !stop_;
  };
  for (const std::string& name : names) {
    const absl::Status sent = SendRunFile(folder.get(), name, sink);
    // A log that was rotated away since is no reason to send nothing.
    if (absl::IsNotFound(sent)) continue;
    LS_RETURN_IF_ERROR(sent);
    if (bytes > kMostRunBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the run's files have more than ", kMostRunBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::launcher
