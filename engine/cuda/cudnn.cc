// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cuda_libraries.h"
#include "common/cuda_version.h"
#include "common/status.h"
#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

constexpr const char* kVariable = "LOCKSTEP_CUDNN_LIBRARY";
constexpr const char* kCompilerVariable = "LOCKSTEP_NVRTC_LIBRARY";
constexpr size_t kMajor = 9;
constexpr size_t kMajorUnit = 10000;

template <typename F>
bool LookUp(void* library, const std::string& name, F** function) {
  *function = reinterpret_cast<F*>(::dlsym(library, name.c_str()));
  return *function != nullptr;
}

bool LookUpDirection(void* library, const std::string& name, CudnnDirection* direction) {
  return LookUp(library, absl::StrCat("cudnnGetConvolution", name, "Algorithm_v7"),
                &direction->find) &&
         LookUp(library, absl::StrCat("cudnnGetConvolution", name, "WorkspaceSize"),
                &direction->workspace) &&
         LookUp(library, absl::StrCat("cudnnConvolution", name), &direction->run);
}

bool LookUpBackend(void* library, CudnnBackend* backend) {
  return LookUp(library, "cudnnBackendCreateDescriptor", &backend->create) &&
         LookUp(library, "cudnnBackendDestroyDescriptor", &backend->destroy) &&
         LookUp(library, "cudnnBackendSetAttribute", &backend->set) &&
         LookUp(library, "cudnnBackendFinalize", &backend->finalize) &&
         LookUp(library, "cudnnBackendGetAttribute", &backend->get) &&
         LookUp(library, "cudnnBackendExecute", &backend->execute);
}

bool LookUpAll(void* library, CudnnApi* api) {
  bool whole = LookUp(library, "cudnnGetVersion", &api->get_version);
  whole &= LookUp(library, "cudnnGetErrorString", &api->error_string);
  whole &= LookUp(library, "cudnnCreate", &api->create);
  whole &= LookUp(library, "cudnnDestroy", &api->destroy);
  whole &= LookUp(library, "cudnnSetStream", &api->set_stream);
  whole &= LookUp(library, "cudnnCreateTensorDescriptor", &api->create_tensor);
  whole &= LookUp(library, "cudnnDestroyTensorDescriptor", &api->destroy_tensor);
  whole &= LookUp(library, "cudnnSetTensor4dDescriptor", &api->set_tensor);
  whole &= LookUp(library, "cudnnCreateFilterDescriptor", &api->create_filter);
  whole &= LookUp(library, "cudnnDestroyFilterDescriptor", &api->destroy_filter);
  whole &= LookUp(library, "cudnnSetFilter4dDescriptor", &api->set_filter);
  whole &= LookUp(library, "cudnnCreateConvolutionDescriptor", &api->create_convolution);
  whole &= LookUp(library, "cudnnDestroyConvolutionDescriptor", &api->destroy_convolution);
  whole &= LookUp(library, "cudnnSetConvolution2dDescriptor", &api->set_convolution);
  whole &= LookUp(library, "cudnnSetConvolutionGroupCount", &api->set_groups);
  whole &= LookUp(library, "cudnnSetConvolutionMathType", &api->set_math);
  whole &= LookUpDirection(library, "Forward", &api->forward);
  whole &= LookUpDirection(library, "BackwardData", &api->backward_data);
  whole &= LookUpDirection(library, "BackwardFilter", &api->backward_filter);
  whole &= LookUpBackend(library, &api->backend);
  return whole;
}

// Errors: FailedPrecondition.
absl::StatusOr<CudnnLibrary> OpenAt(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = ::dlerror();
    return absl::FailedPreconditionError(error == nullptr ? path : error);
  }
  CudnnLibrary library;
  library.path = path;
  const bool whole = LookUpAll(handle, &library.api);
  if (library.api.get_version != nullptr) library.version = library.api.get_version();
  if (whole && library.version / kMajorUnit == kMajor) return library;
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is not cuDNN 9 (version ", library.version, whole ? ")" : ", lacks functions)"));
}

std::string NvrtcFile() { return absl::StrCat("libnvrtc.so.", kCudaMajor); }

// Loads what lies beside `path` and the compiler asks the loader for, by its name alone, too.
void OpenBuiltins(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) return;  // the loader's own folders
  const std::string prefix = absl::StrCat("libnvrtc-builtins.so.", kCudaMajor, ".");
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), prefix)) {
      ::dlopen(entry->path().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
}

// Returns the folder of a library that is loaded, which is named by its path or as it calls
// itself; "" when it is not.
std::string FolderOf(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return "";
  link_map* map = nullptr;
  std::string folder;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0) {
    folder = std::filesystem::path(map->l_name).parent_path().string();
    if (folder.empty()) folder = ".";
  }
  ::dlclose(handle);
  return folder;
}

// Loads the compiler for the cuDNN of `path`. Returns why it is not there, or "".
std::string OpenCompiler(const std::string& path) {
  if (!FolderOf(NvrtcFile()).empty()) return "";
  std::string tried;
  for (const std::string& one :
       NvrtcPaths({FolderOf(path), FolderOf(absl::StrCat("libcublasLt.so.", kCudaMajor))})) {
    void* const handle = ::dlopen(one.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr && !FolderOf(NvrtcFile()).empty()) {
      OpenBuiltins(one);
      return "";
    }
    const char* const error = handle == nullptr ? ::dlerror() : nullptr;
    const std::string why =
        error != nullptr ? error : absl::StrCat(one, " does not call itself ", NvrtcFile());
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", why);
    // The loader would not give it to who asks for the compiler.
    if (handle != nullptr) ::dlclose(handle);
  }
  return absl::StrCat("NVRTC, with which cuDNN compiles some kernels, is not loaded either (",
                      tried.empty() ? "nowhere to look" : tried, "): install CUDA's NVRTC, or set ",
                      kCompilerVariable, " to the path of ", NvrtcFile());
}

// Where LoadCudnn looks, in order.
std::vector<std::string> CudnnPaths() {
  return CudaLibraryPaths(kVariable, "libcudnn.so.9", "cudnn");
}

}  // namespace

std::string CudnnLibrary::name() const {
  return absl::StrCat("cuDNN ", version / kMajorUnit, ".", version / 100 % 100, ".", version % 100);
}

std::vector<std::string> NvrtcPaths(const std::vector<std::string>& folders) {
  const std::string wheel = absl::StrCat("cu", kCudaMajor);
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    if (folder.empty() || std::getenv(kCompilerVariable) != nullptr) continue;
    // The order of cuDNN's own RUNPATH.
    for (const std::string& beside : {std::string(), std::string("/../../cuda_nvrtc/lib"),
                                      absl::StrCat("/../../", wheel, "/lib")}) {
      const std::string path = absl::StrCat(folder, beside, "/", NvrtcFile());
      if (::access(path.c_str(), R_OK) == 0) paths.push_back(path);
    }
  }
  const std::vector<std::string> others = CudaLibraryPaths(kCompilerVariable, NvrtcFile(), wheel);
  paths.insert(paths.end(), others.begin(), others.end());
  return paths;
}

absl::StatusOr<CudnnLibrary> LoadCudnn(const Tables* tables) {
  if (tables != nullptr && IsEmulated(*tables) && std::getenv(kVariable) == nullptr) {
    return absl::FailedPreconditionError("cuDNN is not looked for: the GPU is an emulated one");
  }
  const bool compiles = tables == nullptr || !IsEmulated(*tables);
  std::string tried;
  for (const std::string& path : CudnnPaths()) {
    absl::StatusOr<CudnnLibrary> library = OpenAt(path);
    if (library.ok()) {
      if (compiles) library->no_compiler = OpenCompiler(path);
      return library;
    }
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", library.status().message());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cuDNN cannot be loaded (", tried.empty() ? "nowhere to look" : tried,
                   "): install cuDNN 9, or set ", kVariable, " to its path"));
}

absl::StatusOr<std::shared_ptr<const Cudnn>> Cudnn::Open(const Device& device) {
  LS_ASSIGN_OR_RETURN(CudnnLibrary library, LoadCudnn(&device.tables()));
  std::shared_ptr<Cudnn> made(new Cudnn(std::move(library)));
  const CudnnApi& api = made->api();
  CudnnStatus status = api.create(&made->handle_);
  if (status != 0) made->handle_ = nullptr;
  if (status == 0) status = api.set_stream(made->handle_, device.compute());
  if (status == 0) return std::shared_ptr<const Cudnn>(std::move(made));
  return absl::FailedPreconditionError(absl::StrCat(made->library_.path, " does not start on ",
                                                    device.properties().name, ": ",
                                                    api.error_string(status)));
}

Cudnn::~Cudnn() {
  if (handle_ != nullptr) api().destroy(handle_);
}

}  // namespace lockstep::engine::cuda
