// SPDX-License-Identifier: Apache-2.0
// A transport whose memory can run out, as a host's does: for reserved pages as much must be
// available as is asked for, also where some of them are there. Thread-safety: as FakeTransport.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_SCARCE_TRANSPORT_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_SCARCE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/fake/fake_transport.h"

namespace lockstep::worker {

class ScarceTransport : public FakeTransport {
 public:
  using FakeTransport::FakeTransport;

  static constexpr size_t kPage = 4096;
  static constexpr size_t kPlenty = std::numeric_limits<size_t>::max();
  // From now on so many bytes are available.
  void Leave(size_t bytes) { left_ = bytes; }

  absl::Status CommitPages(void* data, size_t bytes, const std::string& what) override {
    const auto begin = reinterpret_cast<uintptr_t>(data) / kPage;
    const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + kPage - 1) / kPage;
    if ((end - begin) * kPage > left_) {
      return absl::ResourceExhaustedError(absl::StrCat(what, ": ", left_, " bytes are available"));
    }
    for (auto page = begin; page < end; ++page) {
      if (pages_.insert(page).second && left_ != kPlenty) left_ -= kPage;
    }
    return FakeTransport::CommitPages(data, bytes, what);
  }
  void ReleasePages(void* data, size_t bytes) override {
    const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage;
    const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage;
    for (auto page = begin; page < end; ++page) {
      if (pages_.erase(page) > 0 && left_ != kPlenty) left_ += kPage;
    }
    FakeTransport::ReleasePages(data, bytes);
  }

 private:
  size_t left_ = kPlenty;
  std::set<uintptr_t> pages_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_SCARCE_TRANSPORT_H_
