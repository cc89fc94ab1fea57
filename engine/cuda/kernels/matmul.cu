// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt, loaded when the first one is asked for. It knows column-major
// matrices alone: a row-major C = A B is its C^T = B^T A^T, so our B is its first factor. The
// algorithm of a product is chosen before it is prepared, among those whose order of additions is
// fixed and whose sums stay fp32: where k is split, the parts are kept in the type that is summed
// in and added up in a step of their own.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "engine/cuda/kernels/runtime.h"

namespace lockstep::engine::cuda {
namespace {

#define LS_TEXT_OF(x) #x
#define LS_TEXT(x) LS_TEXT_OF(x)
#define LS_FILE "libcublasLt.so." LS_TEXT(CUBLAS_VER_MAJOR)

// The functions of the library that we use.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_config;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) run;
  std::string error;  // why it cannot be used, on any device
  char version[64] = "";
};

template <typename F>
bool Find(void* handle, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(handle, name));
  return *function != nullptr;
}

// Null with why no path can be loaded, each with its own reason, in `tried`.
void* OpenFirst(const char* const* paths, int count, std::string* tried) {
  for (int i = 0; i < count; ++i) {
    if (void* handle = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL)) return handle;
    const char* reason = dlerror();
    if (!tried->empty()) *tried += "; ";
    *tried += reason == nullptr ? paths[i] : reason;
  }
  return nullptr;
}

Library* Open(const char* const* paths, int count) {
  auto* library = new Library;
  std::string tried;
  void* handle = OpenFirst(paths, count, &tried);
  if (handle == nullptr) {
    library->error = LS_FILE " cannot be loaded (" + (tried.empty() ? "nowhere to look" : tried) +
                     "): install CUDA's libraries, or set LOCKSTEP_CUDA_LIBRARIES to their folders";
    return library;
  }
  const bool whole =
      Find(handle, "cublasLtCreate", &library->create) &&
      Find(handle, "cublasLtGetVersion", &library->get_version) &&
      Find(handle, "cublasLtMatmulDescCreate", &library->create_product) &&
      Find(handle, "cublasLtMatmulDescDestroy", &library->destroy_product) &&
      Find(handle, "cublasLtMatmulDescSetAttribute", &library->set_product) &&
      Find(handle, "cublasLtMatrixLayoutCreate", &library->create_layout) &&
      Find(handle, "cublasLtMatrixLayoutDestroy", &library->destroy_layout) &&
      Find(handle, "cublasLtMatmulPreferenceCreate", &library->create_preference) &&
      Find(handle, "cublasLtMatmulPreferenceDestroy", &library->destroy_preference) &&
      Find(handle, "cublasLtMatmulPreferenceSetAttribute", &library->set_preference) &&
      Find(handle, "cublasLtMatmulAlgoGetHeuristic", &library->choose) &&
      Find(handle, "cublasLtMatmulAlgoConfigGetAttribute", &library->get_config) &&
      Find(handle, "cublasLtMatmulAlgoCheck", &library->check) &&
      Find(handle, "cublasLtMatmul", &library->run);
  if (!whole) {
    const char* reason = dlerror();
    library->error = std::string("cuBLASLt lacks a function: ") + (reason == nullptr ? "" : reason);
    return library;
  }
  const size_t version = library->get_version();
  std::snprintf(library->version, sizeof(library->version), "cuBLASLt %zu", version);
  return library;
}

// What the process has of the library, for ever. A handle belongs to the device that was current
// when it was made.
struct State {
  std::mutex mutex;
  const Library* library = nullptr;
  std::map<int, cublasLtHandle_t> handles;
  char error[128] = "";  // the last one of a handle
};
State& TheState() {
  static State* const state = new State;
  return *state;
}

// REQUIRES: Load was called.
const Library& Lib() { return *TheState().library; }

// The current device's handle. Null with a text in `error`, which lives for ever.
cublasLtHandle_t Handle(const char** error) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  *error = state.library == nullptr ? "cuBLASLt is not loaded" : state.library->error.c_str();
  if (**error != '\0') return nullptr;
  int device = 0;
  const cudaError_t none = cudaGetDevice(&device);
  if (none != cudaSuccess) cudaGetLastError();  // or the next call would tell it again
  if (none == cudaSuccess && state.handles[device] != nullptr) return state.handles[device];
  cublasLtHandle_t made = nullptr;
  const int failed =
      none != cudaSuccess ? static_cast<int>(none) : static_cast<int>(state.library->create(&made));
  if (failed == 0) return state.handles[device] = made;
  std::snprintf(state.error, sizeof(state.error),
                "cuBLASLt is there and does not start, as without a GPU: error %d", failed);
  *error = state.error;
  return nullptr;
}

const char* Load(const char* const* paths, int count) {
  State& state = TheState();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.library == nullptr) state.library = Open(paths, count);
  }
  const char* error = "";
  return Handle(&error) == nullptr ? error : "";
}
const char* Version() {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.library == nullptr ? "" : state.library->version;
}

cudaDataType_t DataTypeOf(Type type) {
  if (type == Type::kBF16) return CUDA_R_16BF;
  return type == Type::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// Of a factor, which may be in bytes.
cudaDataType_t FactorTypeOf(const MatmulShape& shape, Fp8 fp8) {
  if (fp8 == Fp8::kNone) return DataTypeOf(shape.factors);
  return fp8 == Fp8::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

struct Prepared {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes = 0;
  bool fused = false;
  bool sums = false;  // aux is where the library writes a bias
};

void Destroy(void* pointer) {
  auto* prepared = static_cast<Prepared*>(pointer);
  if (prepared == nullptr) return;
  const Library& lib = Lib();
  if (prepared->product != nullptr) lib.destroy_product(prepared->product);
  for (cublasLtMatrixLayout_t layout : {prepared->first, prepared->second, prepared->result}) {
    if (layout != nullptr) lib.destroy_layout(layout);
  }
  delete prepared;
}

template <typename T>
bool Set(Prepared* prepared, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return Lib().set_product(prepared->product, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

// Of the library's product, whose first factor is our B.
cublasLtEpilogue_t EpilogueOf(const MatmulShape& shape) {
  switch (shape.epilogue) {
    case Epilogue::kGeluKept:
      return shape.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kSumsA:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::kSumsB:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::kNone:
      break;
  }
  if (!shape.bias) return CUBLASLT_EPILOGUE_RELU;
  return shape.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
}

bool SumsFactor(Epilogue epilogue) {
  return epilogue == Epilogue::kSumsA || epilogue == Epilogue::kSumsB;
}

bool DescribeEpilogue(const MatmulShape& shape, Prepared* prepared) {
  bool good = Set(prepared, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape));
  // Each run says where bias and aux lie; until then the choice sees some aligned place.
  const void* somewhere = reinterpret_cast<const void*>(uintptr_t{256});
  const bool sums = SumsFactor(shape.epilogue);
  if (shape.bias || sums) {
    const int32_t type = DataTypeOf(sums ? Type::kF32 : shape.bias_type);
    good = good && Set(prepared, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type) &&
           Set(prepared, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  }
  if (shape.epilogue != Epilogue::kNone && !sums) {
    const int32_t type = DataTypeOf(shape.result);
    const int64_t stride = shape.ldc;
    good = good && Set(prepared, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type) &&
           Set(prepared, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride) &&
           Set(prepared, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
  }
  prepared->sums = sums;
  return good;
}

bool Describe(const MatmulShape& shape, bool fuse, Prepared* prepared) {
  const Library& lib = Lib();
  const bool tf32 = shape.factors == Type::kF32 && shape.tf32;
  const cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  if (lib.create_product(&prepared->product, compute, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  const cublasOperation_t first = shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = shape.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  bool good = Set(prepared, CUBLASLT_MATMUL_DESC_TRANSA, first) &&
              Set(prepared, CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (fuse) good = good && DescribeEpilogue(shape, prepared);
  if (shape.a_fp8 != Fp8::kNone) {
    // Each run says where the units lie. Between instructions sums are made in fp32, not in what
    // tensor cores keep; inside one they keep some 13 bits whatever is asked for.
    const void* somewhere = reinterpret_cast<const void*>(uintptr_t{256});
    const int8_t fast = 0;
    good = good && Set(prepared, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast) &&
           Set(prepared, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere) &&
           Set(prepared, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere);
  }
  const auto layout = [&](cublasLtMatrixLayout_t* made, cudaDataType_t type, int64_t rows,
                          int64_t columns, int64_t stride) {
    good =
        good && lib.create_layout(made, type, static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns), stride) == CUBLAS_STATUS_SUCCESS;
  };
  layout(&prepared->first, FactorTypeOf(shape, shape.b_fp8), shape.b_transposed ? shape.k : shape.n,
         shape.b_transposed ? shape.n : shape.k, shape.ldb);
  layout(&prepared->second, FactorTypeOf(shape, shape.a_fp8),
         shape.a_transposed ? shape.m : shape.k, shape.a_transposed ? shape.k : shape.m, shape.lda);
  layout(&prepared->result, DataTypeOf(shape.result), shape.n, shape.m, shape.ldc);
  return good;
}

// What may be done with the parts of a split k: kept in the type that is summed in, not in that of
// the result, and not added up in place, in the order in which they come.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

bool HasFixedOrder(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t reduction = 0;
  size_t written = 0;
  const cublasStatus_t status = Lib().get_config(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                 &reduction, sizeof(reduction), &written);
  return status == CUBLAS_STATUS_SUCCESS && (reduction & ~kReductions) == 0;
}

// Asks the library for algorithms; `count` of them are good.
cublasStatus_t Ask(const MatmulShape& shape, size_t workspace_bytes, const Prepared& prepared,
                   MatmulAlgorithm* good, int* count) {
  const Library& lib = Lib();
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = lib.create_preference(&preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = lib.set_preference(preference, attribute, &value, sizeof(value));
  };
  const auto alignment = static_cast<uint32_t>(shape.alignment);
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  cublasLtMatmulHeuristicResult_t found[kMatmulCandidates] = {};
  int number = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status =
        lib.choose(prepared.handle, prepared.product, prepared.first, prepared.second,
                   prepared.result, prepared.result, preference, kMatmulCandidates, found, &number);
  }
  lib.destroy_preference(preference);
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < number; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS || !HasFixedOrder(found[i].algo)) continue;
    MatmulAlgorithm& made = good[(*count)++];
    static_assert(sizeof(made.words) == sizeof(found[i].algo));
    std::memcpy(made.words, &found[i].algo, sizeof(made.words));
    made.workspace_bytes = found[i].workspaceSize;
    made.fused = prepared.fused;
  }
  return status;
}

// The product with or without what follows it. Null when it cannot be described.
Prepared* Make(cublasLtHandle_t handle, const MatmulShape& shape, bool fused) {
  auto* prepared = new (std::nothrow) Prepared;
  if (prepared == nullptr) return nullptr;
  prepared->handle = handle;
  prepared->fused = fused;
  if (Describe(shape, fused, prepared)) return prepared;
  Destroy(prepared);
  return nullptr;
}

void SayNone(const MatmulShape& shape, cublasStatus_t status, char* error, size_t error_bytes) {
  std::snprintf(error, error_bytes,
                "cuBLASLt has no algorithm for a product of %lld x %lld x %lld (error %d)",
                static_cast<long long>(shape.m), static_cast<long long>(shape.n),
                static_cast<long long>(shape.k), static_cast<int>(status));
}

int Candidates(const MatmulShape& shape, size_t workspace_bytes, MatmulAlgorithm* found,
               char* error, size_t error_bytes) {
  const char* missing = "";
  const cublasLtHandle_t handle = Handle(&missing);
  if (handle == nullptr) {
    std::snprintf(error, error_bytes, "%s", missing);
    return 0;
  }
  const bool wants = shape.bias || shape.relu || shape.epilogue != Epilogue::kNone;
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  int count = 0;
  // With what follows the product, then without.
  for (const bool fuse : {true, false}) {
    if (fuse && !wants) continue;
    Prepared* prepared = Make(handle, shape, fuse);
    if (prepared == nullptr) continue;
    status = Ask(shape, workspace_bytes, *prepared, found, &count);
    Destroy(prepared);
    if (count > 0) return count;
  }
  SayNone(shape, status, error, error_bytes);
  return 0;
}

void* Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm, char* error,
              size_t error_bytes) {
  const char* missing = "";
  const cublasLtHandle_t handle = Handle(&missing);
  Prepared* prepared = handle == nullptr ? nullptr : Make(handle, shape, algorithm.fused);
  if (prepared == nullptr) {
    std::snprintf(error, error_bytes, "%s",
                  handle == nullptr ? missing : "a product that cannot be described");
    return nullptr;
  }
  std::memcpy(&prepared->algorithm, algorithm.words, sizeof(prepared->algorithm));
  prepared->workspace_bytes = algorithm.workspace_bytes;
  cublasLtMatmulHeuristicResult_t checked = {};
  const cublasStatus_t status =
      Lib().check(handle, prepared->product, prepared->first, prepared->second, prepared->result,
                  prepared->result, &prepared->algorithm, &checked);
  if (status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= prepared->workspace_bytes) {
    return prepared;
  }
  Destroy(prepared);
  SayNone(shape, status, error, error_bytes);
  return nullptr;
}

bool Fuses(const void* pointer) { return static_cast<const Prepared*>(pointer)->fused; }

Code Run(const void* pointer, const MatmulRun& run, Stream stream) {
  const auto* prepared = static_cast<const Prepared*>(pointer);
  const Library& lib = Lib();
  const auto place = [&](cublasLtMatmulDescAttributes_t attribute, const void* at) {
    return lib.set_product(prepared->product, attribute, &at, sizeof(at));
  };
  cublasStatus_t placed = CUBLAS_STATUS_SUCCESS;
  if (prepared->fused && run.bias != nullptr) {
    placed = place(CUBLASLT_MATMUL_DESC_BIAS_POINTER, run.bias);
  }
  if (placed == CUBLAS_STATUS_SUCCESS && prepared->fused && run.aux != nullptr) {
    placed = place(prepared->sums ? CUBLASLT_MATMUL_DESC_BIAS_POINTER
                                  : CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                   run.aux);
  }
  if (placed == CUBLAS_STATUS_SUCCESS && run.a_unit != nullptr) {  // our B is its first factor
    placed = place(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, run.b_unit);
  }
  if (placed == CUBLAS_STATUS_SUCCESS && run.a_unit != nullptr) {
    placed = place(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, run.a_unit);
  }
  if (placed != CUBLAS_STATUS_SUCCESS) return kMatmulErrors + static_cast<Code>(placed);
  const void* const addend = run.addend != nullptr ? run.addend : run.c;
  const float alpha = 1, beta = run.adds || run.addend != nullptr ? 1 : 0;
  const cublasStatus_t status = lib.run(
      prepared->handle, prepared->product, &alpha, run.b, prepared->first, run.a, prepared->second,
      &beta, addend, prepared->result, run.c, prepared->result, &prepared->algorithm, run.workspace,
      prepared->workspace_bytes, static_cast<cudaStream_t>(stream));
  return status == CUBLAS_STATUS_SUCCESS ? 0 : kMatmulErrors + static_cast<Code>(status);
}

}  // namespace

const Matmul kMatmul = {
    .file = LS_FILE,
    .load = Load,
    .version = Version,
    .candidates = Candidates,
    .prepare = Prepare,
    .fuses = Fuses,
    .run = Run,
    .destroy = Destroy,
};

}  // namespace lockstep::engine::cuda
