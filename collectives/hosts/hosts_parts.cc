// SPDX-License-Identifier: Apache-2.0
// A TreeReduce that is begun with parts. The first part is a call of its own, after which data
// moves as parts become ready, on the thread that the mesh is lent to; each further part is a word
// in shared memory. TreeReduce is the second call: it takes the mesh back and moves what is left.
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_communicator.h"
#include "collectives/shm/layout.h"
#include "common/check.h"

namespace lockstep {
namespace {

// A stamp of the generation: the call's sequence, then how many parts.
using PartsWord = std::atomic<uint64_t>;
static_assert(PartsWord::is_always_lock_free && sizeof(PartsWord) == sizeof(uint64_t));
constexpr int kPartsBits = 12;
constexpr size_t kMostParts = (size_t{1} << kPartsBits) - 1;
constexpr uint64_t kSequences = uint64_t{1} << (40 - kPartsBits);

uint64_t CallOfWord(int64_t sequence) {
  return static_cast<uint64_t>(sequence) % kSequences << kPartsBits;
}

const PartsWord& WordOf(const char* area) {
  return *reinterpret_cast<const PartsWord*>(area + HostsCommunicator::kAreaBytes);
}

}  // namespace

absl::Status HostsCommunicator::BeginPart(const TreeReduceArgs& args, absl::Time deadline) {
  // With one part nothing is computed while it moves; a small vector goes in one exchange.
  if (args.parts.size() < 2 || args.parts.size() >= kMostParts || IsSmallTree(args)) {
    return absl::OkStatus();
  }
  if (begun_.reduction == nullptr) {
    const Operation operation = TreeOperation(OpKind::kBeginReduce, args);
    LS_RETURN_IF_ERROR(Run(operation, 0, [&]() -> absl::Status {
      LS_RETURN_IF_ERROR(CheckArgs(args));
      return BeginFirst(args, operation, deadline);
    }));
  } else {
    LS_CHECK(args.step == begun_.step && begun_.parts < args.parts.size());
  }
  PublishParts(begun_.parts + 1);
  if (thread_ == nullptr) return absl::OkStatus();
  if (absl::Status met = thread_->Met(); !met.ok()) {
    Operation operation = TreeOperation(OpKind::kBeginReduce, args);
    return Run(operation, 0, [&met] { return std::move(met); });
  }
  if (thread_->lent()) {
    thread_->Nudge();
  } else {
    thread_->Lend(begun_.reduction.get());
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::BeginFirst(const TreeReduceArgs& args, const Operation& operation,
                                           absl::Time deadline) {
  begun_ = {args.step, operation.sequence, args.count, args.result, 0, nullptr};
  LS_RETURN_IF_ERROR(AnnouncePlaces(args, operation, deadline));
  HostsReduction::Parts parts;
  parts.sums = &*sums_;
  parts.node = [this](int rank, int i) { return LocalNode(rank, i); };
  parts.result = args.result;
  parts.count = args.count;
  parts.rounded = args.rounded;
  parts.memory = &memory_;
  parts.wanted = args.wanted;
  parts.parts.assign(args.parts.begin(), args.parts.end());
  if (args.parts.back().end < args.count) {
    parts.parts.push_back({args.parts.back().end, args.count});
  }
  parts.ready = [this] { return ReadyEnd(); };
  newest_.reset();  // its slices are overwritten
  begun_.reduction = std::make_unique<HostsReduction>(&context_, operation, std::move(parts));
  begun_.reduction->AwaitEnd();
  return absl::OkStatus();
}

absl::Status HostsCommunicator::EndBegun(const TreeReduceArgs& args, const Operation& operation,
                                         absl::Time deadline) {
  if (args.step != begun_.step || args.count != begun_.count || args.result != begun_.result) {
    return absl::InternalError(absl::StrCat(ToString(operation), ": parts of another were begun"));
  }
  PublishParts(begun_.reduction->parts().size());
  LS_RETURN_IF_ERROR(AnnouncePlaces(args, operation, deadline, begun_.reduction.get()));
  LS_RETURN_IF_ERROR(begun_.reduction->EndsWith(operation));
  LS_RETURN_IF_ERROR(Exchange(begun_.reduction.get(), deadline));
  const std::unique_ptr<HostsReduction> reduction = std::move(begun_.reduction);
  slices_.clear();
  return TakeResult(args, *reduction, deadline);
}

void HostsCommunicator::PublishParts(size_t parts) {
  begun_.parts = parts;
  auto* const word = reinterpret_cast<PartsWord*>(group_.area + kAreaBytes);
  word->store(PackStamp(generation(), CallOfWord(begun_.sequence) | parts),
              std::memory_order_release);
}

int64_t HostsCommunicator::ReadyEnd() const {
  const std::vector<ElementRange>& parts = begun_.reduction->parts();
  size_t least = parts.size();
  for (const char* const area : group_.areas) {
    const uint64_t word = WordOf(area).load(std::memory_order_acquire);
    const uint64_t value = StampValue(word);
    const bool same = StampGeneration(word) == generation() &&
                      value >> kPartsBits << kPartsBits == CallOfWord(begun_.sequence);
    least = std::min<size_t>(least, same ? value & kMostParts : 0);
  }
  return least == 0 ? 0 : parts[least - 1].end;
}

}  // namespace lockstep
