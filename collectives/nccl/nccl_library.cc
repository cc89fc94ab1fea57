// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/cuda_libraries.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr int kOldest = 21800;

template <typename F>
bool LookUp(void* library, const char* name, F** function) {
  *function = reinterpret_cast<F*>(::dlsym(library, name));
  return *function != nullptr;
}

// Returns whether the functions that every version has are there.
bool LookUpAll(void* library, NcclApi* api) {
  bool whole = LookUp(library, "ncclGetVersion", &api->get_version);
  whole &= LookUp(library, "ncclGetUniqueId", &api->get_unique_id);
  whole &= LookUp(library, "ncclCommInitRankConfig", &api->init_rank_config);
  whole &= LookUp(library, "ncclCommAbort", &api->abort);
  whole &= LookUp(library, "ncclGetErrorString", &api->error_string);
  whole &= LookUp(library, "ncclGetLastError", &api->last_error);
  whole &= LookUp(library, "ncclCommGetAsyncError", &api->async_error);
  whole &= LookUp(library, "ncclGroupStart", &api->group_start);
  whole &= LookUp(library, "ncclGroupEnd", &api->group_end);
  whole &= LookUp(library, "ncclSend", &api->send);
  whole &= LookUp(library, "ncclRecv", &api->recv);
  whole &= LookUp(library, "ncclAllGather", &api->all_gather);
  whole &= LookUp(library, "ncclAllReduce", &api->all_reduce);
  whole &= LookUp(library, "ncclBroadcast", &api->broadcast);
  if (!LookUp(library, "ncclMemFree", &api->mem_free) ||
      !LookUp(library, "ncclMemAlloc", &api->mem_alloc)) {
    api->mem_alloc = nullptr;
  }
  if (!LookUp(library, "ncclCommWindowDeregister", &api->window_deregister) ||
      !LookUp(library, "ncclCommWindowRegister", &api->window_register)) {
    api->window_register = nullptr;
  }
  LookUp(library, "ncclCommShrink", &api->shrink);
  LookUp(library, "ncclCommRevoke", &api->revoke);
  if (!LookUp(library, "ncclCommGetUniqueId", &api->grow_id) ||
      !LookUp(library, "ncclCommGrow", &api->grow)) {
    api->grow = nullptr;
  }
  return whole;
}

// Where LoadNccl looks, in order.
std::vector<std::string> NcclPaths() {
  return CudaLibraryPaths("LOCKSTEP_NCCL_LIBRARY", kFile, "nccl");
}

// The table of the library at `path`. Errors: as LoadNccl.
absl::StatusOr<NcclLibrary> OpenNccl(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for ever
  if (handle == nullptr) {
    const char* error = ::dlerror();
    return absl::FailedPreconditionError(error == nullptr ? path : error);
  }
  NcclLibrary library;
  library.path = path;
  if (!LookUpAll(handle, &library.api) ||
      library.api.get_version(&library.version) != kNcclSuccess || library.version < kOldest) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is too old (version ", library.version, "): NCCL 2.18 or newer"));
  }
  return library;
}

}  // namespace

std::string NcclLibrary::name() const {
  return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string NcclLibrary::features() const {
  const auto feature = [](bool there, const char* word) {
    return absl::StrCat(there ? "" : "no ", word);
  };
  return absl::StrCat(feature(api.revoke != nullptr, "revoke"), ", ",
                      feature(api.shrink != nullptr, "shrink"), ", ",
                      feature(api.grow != nullptr, "grow"), ", ",
                      feature(api.window_register != nullptr, "windows"));
}

absl::StatusOr<const NcclLibrary*> LoadNccl() {
  const auto search = []() -> absl::StatusOr<NcclLibrary>* {
    std::string tried;
    for (const std::string& path : NcclPaths()) {
      absl::StatusOr<NcclLibrary> library = OpenNccl(path);
      if (library.ok()) return new absl::StatusOr<NcclLibrary>(std::move(library));
      absl::StrAppend(&tried, tried.empty() ? "" : "; ", library.status().message());
    }
    return new absl::StatusOr<NcclLibrary>(absl::FailedPreconditionError(
        absl::StrCat("NCCL cannot be loaded (", tried.empty() ? "nowhere to look" : tried,
                     "): install libnccl2, or set LOCKSTEP_NCCL_LIBRARY to its path")));
  };
  static const absl::StatusOr<NcclLibrary>* const loaded = search();  // lives for ever
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

absl::Status NcclStatus(const NcclApi& api, NcclComm comm, NcclResult result,
                        const std::string& what) {
  if (result == kNcclSuccess) return absl::OkStatus();
  std::string text = absl::StrCat(what, ": NCCL says: ", api.error_string(result));
  const char* last = api.last_error(comm);  // it takes null too
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, " (", last, ")");
  if (result == kNcclRemoteError || result == kNcclSystemError) return absl::AbortedError(text);
  return absl::InternalError(text);
}

}  // namespace lockstep
