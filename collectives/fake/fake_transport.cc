// SPDX-License-Identifier: Apache-2.0
#include "collectives/fake/fake_transport.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/fake/fake_communicator.h"
#include "collectives/fake/fake_group.h"
#include "collectives/hosts/host_groups.h"
#include "common/check.h"
#include "common/round_up.h"
#include "common/status.h"

namespace lockstep {
namespace {
constexpr size_t kAlign = 64, kPage = 4096;
}  // namespace

std::shared_ptr<FakeGroup> FakeNetwork::Group(int64_t generation, int world_size) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<FakeGroup>& group = groups_[generation];
  if (group == nullptr) {
    group = std::make_shared<FakeGroup>(world_size);
    if (generation <= aborted_) group->Abort(reason_);
  }
  return group;
}

std::string FakeNetwork::NextAddress() {
  absl::MutexLock lock(&mu_);
  return absl::StrCat("fake-", ++addresses_);
}

void FakeNetwork::AddMember(int64_t generation, const std::string& address, int rank) {
  absl::MutexLock lock(&mu_);
  members_.insert({address, {generation, rank}});
}

void FakeNetwork::Kill(const std::string& address) {
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = members_.equal_range(address);
  for (auto it = begin; it != end; ++it) {
    groups_[it->second.first]->Abort(absl::StrCat("rank ", it->second.second, " died"));
  }
}

void FakeNetwork::AbortUpTo(int64_t generation, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (generation > aborted_) {
    aborted_ = generation;
    reason_ = reason;
  }
  for (auto& [each, group] : groups_) {
    if (each <= generation) group->Abort(reason);
  }
}

FakeTransport::FakeTransport(FakeNetwork* network, size_t arena_bytes)
    : network_(network), address_(network->NextAddress()), left_(arena_bytes), recorder_(256) {}

FakeTransport::~FakeTransport() {
  for (void* block : blocks_) std::free(block);
  for (const Reserved& reserved : reserved_) ::munmap(reserved.data, reserved.bytes);
}

absl::StatusOr<void*> FakeTransport::Allocate(size_t bytes, const std::string& what) {
  const size_t rounded = RoundUp(bytes, kAlign);
  if (bytes > left_ || rounded > left_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", what, ": asked for ", bytes, " bytes, ", left_, " are left"));
  }
  // Whole pages, as in shared memory: what a debug build protects is protected in every run.
  const size_t pages = RoundUp(std::max<size_t>(rounded, 1), kPage);
  void* block = std::aligned_alloc(kPage, pages);
  if (block == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what));
  std::memset(block, 0, rounded);
  blocks_.push_back(block);
  left_ -= rounded;
  return block;
}

absl::StatusOr<void*> FakeTransport::ReservePages(size_t bytes, const std::string& what) {
  if (bytes > left_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", what, ": asked for ", bytes, " bytes, ", left_, " are left"));
  }
  Reserved reserved;
  reserved.bytes = std::max<size_t>(bytes, 1);
  reserved.memory = UniqueFd(::memfd_create("reserved", MFD_CLOEXEC));
  if (!reserved.memory.valid() ||
      ::ftruncate(reserved.memory.get(), static_cast<off_t>(reserved.bytes)) != 0) {
    return ErrnoStatus(errno, what);
  }
  void* const data =
      ::mmap(nullptr, reserved.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reserved.memory.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, what);
  reserved.data = static_cast<char*>(data);
  reserved_.push_back(std::move(reserved));
  left_ -= bytes;
  ReleasePages(data, bytes);
  return data;
}

absl::Status FakeTransport::CommitPages(void* data, size_t bytes, const std::string& what) {
  return absl::OkStatus();
}

void FakeTransport::ReleasePages(void* data, size_t bytes) {
  const std::string poison(bytes, '\xff');
  for (const Reserved& reserved : reserved_) {
    const std::ptrdiff_t offset = static_cast<char*>(data) - reserved.data;
    if (offset < 0 || static_cast<size_t>(offset) + bytes > reserved.bytes) continue;
    LS_CHECK_EQ(::pwrite(reserved.memory.get(), poison.data(), bytes, offset),
                static_cast<ssize_t>(bytes));
    return;
  }
  LS_CHECK(false) << "not a part of reserved memory";
}

absl::StatusOr<std::unique_ptr<Communicator>> FakeTransport::Connect(const GroupSpec& spec,
                                                                     absl::Time deadline) {
  const std::vector<GroupMember>& members = spec.members;
  const int64_t generation = spec.generation;
  const int rank = spec.rank;
  const int world = static_cast<int>(members.size());
  if (rank < 0 || rank >= world) {
    return absl::InternalError(absl::StrCat("rank ", rank, " of ", world, " members"));
  }
  std::shared_ptr<FakeGroup> group = network_->Group(generation, world);
  network_->AddMember(generation, address_, rank);
  int shards = 0;
  for (const GroupMember& member : members) shards = std::max(shards, member.shards.end);
  FakeCall call;
  call.operation.kind = OpKind::kConnect;
  call.operation.generation = generation;
  recorder_.Begin(call.operation, 0);
  const absl::Status status = group->Exchange(rank, call, deadline).status();
  recorder_.End(status.code());
  LS_RETURN_IF_ERROR(status);
  return std::make_unique<FakeCommunicator>(std::move(group), generation, rank, world, shards,
                                            GroupByHost(spec.members).host, &recorder_);
}

void FakeTransport::AbortConnect(int64_t generation, const std::string& reason) {
  network_->AbortUpTo(generation, reason);
}

}  // namespace lockstep
