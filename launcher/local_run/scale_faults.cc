// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/scale_faults.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/status.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr int kTries = 50;
constexpr int kBetweenTriesMs = 50;

}  // namespace

absl::StatusOr<std::unique_ptr<ScaleFaults>> ScaleFaults::Create(
    const std::string& path, std::function<void(const std::string&)> on_refused) {
  if (::mkfifo(path.c_str(), 0600) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make the pipe ", path));
  }
  std::unique_ptr<ScaleFaults> scaler(new ScaleFaults(std::move(on_refused)));
  // Open for writing too, so that it has no end while no worker has it open.
  scaler->pipe_.reset(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  scaler->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!scaler->pipe_.valid() || !scaler->stop_.valid()) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the pipe ", path));
  }
  return scaler;
}

void ScaleFaults::Start(std::shared_ptr<coordinator::Client> client, std::string job_id,
                        std::vector<chaos::Injection> faults) {
  client_ = std::move(client);
  job_id_ = std::move(job_id);
  faults_ = std::move(faults);
  thread_ = Thread("scale faults", [this] { Run(); });
}

void ScaleFaults::Stop() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.Join();
}

std::set<int> ScaleFaults::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

void ScaleFaults::Run() {
  std::string rest;
  while (true) {
    pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {pipe_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) ReadLines(&rest);
  }
}

void ScaleFaults::ReadLines(std::string* rest) {
  char buffer[256];
  const ssize_t n = ::read(pipe_.get(), buffer, sizeof(buffer));
  if (n > 0) rest->append(buffer, static_cast<size_t>(n));
  for (size_t end = rest->find('\n'); end != std::string::npos; end = rest->find('\n')) {
    size_t number = 0;
    const bool known = absl::SimpleAtoi(absl::string_view(*rest).substr(0, end), &number) &&
                       number < faults_.size();
    rest->erase(0, end + 1);
    if (!known) continue;
    const absl::Status scaled = Scale(faults_[number].workers);
    if (scaled.ok()) continue;
    {
      absl::MutexLock lock(&mu_);
      refused_.insert(static_cast<int>(number));
    }
    on_refused_(absl::StrCat(chaos::ToString(faults_[number]), ": ", scaled.message()));
  }
}

bool ScaleFaults::Stopped(int timeout_ms) const {
  pollfd fd = {stop_.get(), POLLIN, 0};
  return ::poll(&fd, 1, timeout_ms) > 0;
}

absl::Status ScaleFaults::Scale(int workers) {
  ScaleJobRequest request;
  request.set_job_id(job_id_);
  request.set_workers(workers);
  absl::Status status;
  for (int tries = 0; tries < kTries; ++tries) {
    status = client_->ScaleJob(request, kCallTimeout).status();
    const bool unheard = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!unheard || Stopped(kBetweenTriesMs)) return status;
  }
  return status;
}

}  // namespace lockstep::launcher
