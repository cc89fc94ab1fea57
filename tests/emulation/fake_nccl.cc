// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "tests/emulation/fake_nccl_comm.h"
#include "tests/emulation/fake_nccl_faults.h"

namespace lockstep::fake_nccl {
namespace {

// Work on a stream keeps the communicator alive.
using Held = std::shared_ptr<Comm>;

// What a call that has returned success still does, and writes when it is over, as NCCL's thread
// would: when it has been waited for, or, whatever became of it, when the communicator is aborted.
struct Late {
  std::function<bool()> over;
  std::function<void(bool aborted)> write;
};

// What a handle points to.
struct Handle {
  Held comm;
  std::vector<Late> late;
};
Handle& HandleOf(NcclComm handle) { return *reinterpret_cast<Handle*>(handle); }
Held& Of(NcclComm handle) { return HandleOf(handle).comm; }
NcclComm NewHandle(Held comm) {
  return reinterpret_cast<NcclComm>(new Handle{std::move(comm), {}});
}

// Returns whether a call that has returned still works.
bool StillWorks(Handle* handle) {
  for (const Late& each : handle->late) {
    if (!each.over()) return true;
  }
  for (const Late& each : handle->late) each.write(false);
  handle->late.clear();
  return false;
}

std::mutex mu;
Enqueue enqueue_hook = nullptr;
std::map<int, Fault> faults;
std::set<int> refusals;
Counts counts;

// A group that the calling thread has begun.
struct Pending {
  Held comm;
  void* stream;
  std::vector<Call> calls;
};
thread_local int depth = 0;
thread_local std::vector<Pending> pending;

NcclResult Flush() {
  Enqueue hook = nullptr;
  {
    const std::lock_guard lock(mu);
    hook = enqueue_hook;
  }
  for (Pending& each : pending) {
    if (hook == nullptr) {
      each.comm->Submit(std::move(each.calls));
    } else {
      hook(each.stream,
           [comm = each.comm, calls = std::move(each.calls)] { comm->Execute(calls); });
    }
  }
  pending.clear();
  return hook == nullptr ? kNcclInProgress : kNcclSuccess;
}

NcclResult Add(const Call& call, NcclComm handle, void* stream) {
  const Held& comm = Of(handle);
  if (pending.empty() || pending.back().comm != comm || pending.back().stream != stream) {
    pending.push_back({comm, stream, {}});
  }
  pending.back().calls.push_back(call);
  return depth > 0 ? kNcclSuccess : Flush();
}

bool Refused(int rank) {
  const std::lock_guard lock(mu);
  return refusals.erase(rank) > 0;
}

void Count(int Counts::*which) {
  const std::lock_guard lock(mu);
  ++(counts.*which);
}

// A name for what is made of `parent`, the same on all of its ranks.
std::string NameFrom(const std::string& parent, const std::string& what) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : parent + what) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return std::to_string(hash);
}

std::string GrownName(const Comm& parent) { return NameFrom(parent.name(), "/grown"); }

// An id says where its ranks meet, "10.0.0.1:41234/NAME".
NcclResult MakeId(const std::string& name, NcclUniqueId* id) {
  Endpoint* const own = Endpoint::Get();
  if (own == nullptr) return kNcclInvalidUsage;  // "no socket interface found"
  const std::string text = own->address() + "/" + name;
  LS_CHECK_LT(text.size(), sizeof(id->bytes));
  *id = {};
  std::memcpy(id->bytes, text.data(), text.size());
  return kNcclSuccess;
}
Way WayOf(const NcclUniqueId& id) {
  const std::string text = id.bytes;
  const size_t slash = text.find('/');
  LS_CHECK(slash != std::string::npos) << text;
  return {text.substr(slash + 1), text.substr(0, slash), {}};
}

NcclResult Make(Way way, int ranks, int rank, NcclComm* comm) {
  Endpoint* const own = Endpoint::Get();
  if (own == nullptr) return kNcclInvalidUsage;
  *comm = NewHandle(std::make_shared<Comm>(own, std::move(way), ranks, rank));
  return kNcclInProgress;
}

}  // namespace

void SetEnqueue(Enqueue enqueue) {
  const std::lock_guard lock(mu);
  enqueue_hook = enqueue;
}

void HangNext(int rank) {
  const std::lock_guard lock(mu);
  faults[rank].hangs = true;
}

void FailNext(int rank, NcclResult error, bool ends) {
  const std::lock_guard lock(mu);
  faults[rank].error = error;
  faults[rank].ends = ends;
}

void RefuseNextManagement(int rank) {
  const std::lock_guard lock(mu);
  refusals.insert(rank);
}

bool FaultsPending() {
  const std::lock_guard lock(mu);
  return !faults.empty() || !refusals.empty();
}

Counts GetCounts() {
  const std::lock_guard lock(mu);
  return counts;
}

Fault TakeFault(int rank) {
  const std::lock_guard lock(mu);
  const auto found = faults.find(rank);
  if (found == faults.end()) return {};
  const Fault fault = found->second;
  faults.erase(found);
  return fault;
}

}  // namespace lockstep::fake_nccl

using lockstep::kNcclInProgress;
using lockstep::kNcclInternalError;
using lockstep::kNcclInvalidUsage;
using lockstep::kNcclSuccess;
using lockstep::NcclComm;
using lockstep::NcclConfig;
using lockstep::NcclReduction;
using lockstep::NcclResult;
using lockstep::NcclType;
using lockstep::NcclUniqueId;
using lockstep::NcclWindow;
namespace fake = lockstep::fake_nccl;

extern "C" {

NcclResult ncclGetVersion(int* version) {
  const char* const given = std::getenv("LOCKSTEP_FAKE_NCCL_VERSION");
  *version = given == nullptr ? 23007 : std::atoi(given);
  return kNcclSuccess;
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  static std::atomic<int> made{0};
  std::random_device random;
  return fake::MakeId(
      std::to_string(::getpid()) + "-" + std::to_string(made++) + "-" + std::to_string(random()),
      id);
}

NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  if (config->blocking != 0 || rank < 0 || rank >= ranks) return kNcclInvalidUsage;
  fake::Count(&fake::Counts::inits);
  return fake::Make(fake::WayOf(id), ranks, rank, comm);
}

NcclResult ncclCommAbort(NcclComm comm) {
  fake::Count(&fake::Counts::aborts);
  for (const fake::Late& each : fake::HandleOf(comm).late) each.write(true);
  fake::Of(comm)->End();
  delete &fake::HandleOf(comm);
  return kNcclSuccess;
}

NcclResult ncclCommRevoke(NcclComm comm, int) {
  fake::Count(&fake::Counts::revokes);
  fake::Of(comm)->End();
  return kNcclInProgress;
}

const char* ncclGetErrorString(NcclResult result) {
  if (result == kNcclSuccess) return "no error";
  if (result == kNcclInvalidUsage) return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  return "a fake error";
}
const char* ncclGetLastError(NcclComm) { return "asked for by a test"; }

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* error) {
  *error = fake::StillWorks(&fake::HandleOf(comm)) ? kNcclInProgress : fake::Of(comm)->State();
  return kNcclSuccess;
}

NcclResult ncclGroupStart() {
  ++fake::depth;
  return kNcclSuccess;
}

NcclResult ncclGroupEnd() { return --fake::depth > 0 ? kNcclSuccess : fake::Flush(); }

NcclResult ncclSend(const void* data, size_t count, NcclType type, int peer, NcclComm comm,
                    void* stream) {
  return fake::Add({fake::Call::Kind::kSend, data, nullptr, count, type, {}, peer}, comm, stream);
}

NcclResult ncclRecv(void* data, size_t count, NcclType type, int peer, NcclComm comm,
                    void* stream) {
  return fake::Add({fake::Call::Kind::kRecv, nullptr, data, count, type, {}, peer}, comm, stream);
}

NcclResult ncclAllGather(const void* input, void* output, size_t count, NcclType type,
                         NcclComm comm, void* stream) {
  return fake::Add({fake::Call::Kind::kAllGather, input, output, count, type, {}, 0}, comm, stream);
}

NcclResult ncclAllReduce(const void* input, void* output, size_t count, NcclType type,
                         NcclReduction op, NcclComm comm, void* stream) {
  return fake::Add({fake::Call::Kind::kAllReduce, input, output, count, type, op, 0}, comm, stream);
}

NcclResult ncclBroadcast(const void* input, void* output, size_t count, NcclType type, int root,
                         NcclComm comm, void* stream) {
  return fake::Add({fake::Call::Kind::kBroadcast, input, output, count, type, {}, root}, comm,
                   stream);
}

NcclResult ncclMemAlloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(lockstep::kNcclWindowAlignment, bytes);
  return *memory == nullptr ? lockstep::kNcclSystemError : kNcclSuccess;
}

NcclResult ncclMemFree(void* memory) {
  std::free(memory);
  return kNcclSuccess;
}

NcclResult ncclCommWindowRegister(NcclComm comm, void* memory, size_t, NcclWindow* window, int) {
  if (reinterpret_cast<uintptr_t>(memory) % lockstep::kNcclWindowAlignment != 0) {
    return lockstep::kNcclInvalidArgument;
  }
  fake::Count(&fake::Counts::windows);
  *window = nullptr;
  fake::HandleOf(comm).late.push_back({[looks = 0]() mutable { return ++looks > 1; },
                                       [window, memory](bool aborted) {
                                         *window =
                                             aborted ? nullptr : static_cast<NcclWindow>(memory);
                                       }});
  return kNcclSuccess;
}

NcclResult ncclCommWindowDeregister(NcclComm, NcclWindow) { return kNcclSuccess; }

NcclResult ncclCommShrink(NcclComm comm, int* excluded, int count, NcclComm* made, NcclConfig*,
                          int) {
  const fake::Comm& old = *fake::Of(comm);
  if (fake::Refused(old.rank())) return kNcclInternalError;
  fake::Count(&fake::Counts::shrinks);
  std::string what = "/shrunk";
  int rank = old.rank();
  // Those that stay know each other.
  std::vector<std::string> addresses = fake::Of(comm)->Addresses();
  if (addresses.empty()) return kNcclInvalidUsage;
  for (int i = 0; i < count; ++i) {
    if (excluded[i] < old.rank()) --rank;
    what += "," + std::to_string(excluded[i]);
    addresses[static_cast<size_t>(excluded[i])].clear();
  }
  std::erase(addresses, "");
  fake::Of(comm)->End();
  NcclComm child = nullptr;
  const NcclResult begun = fake::Make({fake::NameFrom(old.name(), what), "", addresses},
                                      old.world() - count, rank, &child);
  if (begun != kNcclInProgress) return begun;
  *made = nullptr;
  fake::HandleOf(comm).late.push_back(
      {[child] { return fake::Of(child)->State() != kNcclInProgress; },
       [child, made](bool aborted) {
         if (aborted) fake::Of(child)->End();
         *made = child;
       }});
  return kNcclSuccess;
}

NcclResult ncclCommGetUniqueId(NcclComm comm, NcclUniqueId* id) {
  // Members without the id look for it at their first rank.
  if (fake::Of(comm)->rank() != 0) return kNcclInvalidUsage;
  return fake::MakeId(fake::GrownName(*fake::Of(comm)), id);
}

NcclResult ncclCommGrow(NcclComm comm, int ranks, const NcclUniqueId* id, int rank, NcclComm* made,
                        NcclConfig*) {
  const int own = comm == nullptr ? rank : fake::Of(comm)->rank();
  // Joiners give the id and a rank, members no rank, and one of them alone the id.
  if ((comm == nullptr) != (rank >= 0) || (own == 0 || comm == nullptr) != (id != nullptr)) {
    return lockstep::kNcclInvalidArgument;
  }
  if (fake::Refused(own)) return kNcclInternalError;
  fake::Count(&fake::Counts::grows);
  if (id != nullptr) return fake::Make(fake::WayOf(*id), ranks, own, made);
  const std::vector<std::string> addresses = fake::Of(comm)->Addresses();
  if (addresses.empty()) return kNcclInvalidUsage;
  return fake::Make({fake::GrownName(*fake::Of(comm)), addresses.front(), {}}, ranks, own, made);
}

}  // extern "C"

namespace lockstep::fake_nccl {

NcclLibrary Library() {
  NcclLibrary library;
  library.path = "fake";
  library.version = 23007;
  library.api = {ncclGetVersion,
                 ncclGetUniqueId,
                 ncclCommInitRankConfig,
                 ncclCommAbort,
                 ncclGetErrorString,
                 ncclGetLastError,
                 ncclCommGetAsyncError,
                 ncclGroupStart,
                 ncclGroupEnd,
                 ncclSend,
                 ncclRecv,
                 ncclAllGather,
                 ncclAllReduce,
                 ncclBroadcast,
                 ncclMemAlloc,
                 ncclMemFree,
                 ncclCommWindowRegister,
                 ncclCommWindowDeregister,
                 ncclCommShrink,
                 ncclCommRevoke,
                 ncclCommGetUniqueId,
                 ncclCommGrow};
  return library;
}

}  // namespace lockstep::fake_nccl
