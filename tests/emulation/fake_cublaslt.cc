// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace {

using lockstep::fake_cublaslt::Settings;

Settings settings;

struct Handle {
  int device;
};
struct Product {
  cublasComputeType_t compute;
  // Attributes as they were set, by number.
  std::map<int, uint64_t> set;
  template <typename T>
  T Get(cublasLtMatmulDescAttributes_t attribute, T otherwise) const {
    const auto at = set.find(attribute);
    return at == set.end() ? otherwise : static_cast<T>(at->second);
  }
};
struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment = 256;  // the least of the operands'
};
// What an algorithm's opaque numbers mean here.
struct Algorithm {
  uint64_t number, reduction, workspace;
};

template <typename T, typename Opaque>
T& As(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}
template <typename T, typename Opaque>
const T& As(const Opaque* opaque) {
  return *reinterpret_cast<const T*>(opaque);
}

uint64_t Number(const void* bytes, size_t size) {
  uint64_t number = 0;
  std::memcpy(&number, bytes, std::min(size, sizeof(number)));
  return number;
}

bool IsFp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

bool Adds(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool Sums(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool Keeps(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// As the tables of types in cuBLAS's documentation have it, and the comments of its header.
bool Supports(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
  const bool fp8 = IsFp8(a.type) || IsFp8(b.type);
  if (fp8) {
    const bool turned = product.Get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T &&
                        product.Get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_N;
    if (!turned || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)) return false;
  } else if (a.type != b.type || (d.type != CUDA_R_32F && d.type != a.type)) {
    return false;
  }
  const auto epilogue = product.Get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  const auto pointer = product.Get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, uint64_t{0});
  const int type = product.Get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
  if (Adds(epilogue) || Sums(epilogue)) {
    if (pointer == 0 || pointer % 16 != 0) return false;
    if (type != -1 && type != static_cast<int>(d.type)) return false;  // a bias has D's type
  }
  if (Keeps(epilogue)) {
    const auto stride = product.Get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{0});
    const int kept = product.Get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, -1);
    if (product.Get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, uint64_t{0}) == 0) return false;
    if (stride % 8 != 0 || stride < static_cast<int64_t>(d.rows)) return false;
    if (kept != -1 && kept != static_cast<int>(d.type)) return false;
  }
  return true;
}

}  // namespace

extern "C" {

Settings* fake_cublaslt_settings() { return &settings; }

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++settings.handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle{settings.device});  // for ever
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, {}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete &As<Product>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* bytes, size_t size) {
  As<Product>(product).set[attribute] = Number(bytes, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &As<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &As<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* bytes, size_t size) {
  Preference& own = As<Preference>(preference);
  const uint64_t number = Number(bytes, size);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    own.workspace = number;
  } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    own.reductions = static_cast<uint32_t>(number);
  } else {
    own.alignment = std::min(own.alignment, static_cast<uint32_t>(number));
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  if (As<Handle>(handle).device != settings.device) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supports(As<Product>(product), As<Layout>(a), As<Layout>(b), As<Layout>(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const Preference& wants = As<Preference>(preference);
  settings.reductions = wants.reductions;
  // Those that split k first, as for a product with few tiles.
  constexpr uint32_t kSchemes[] = {
      CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE,
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE};
  for (const uint32_t scheme : kSchemes) {
    if (settings.heeds_reductions && (scheme & ~wants.reductions) != 0) continue;
    if (*count == asked) break;
    cublasLtMatmulHeuristicResult_t& made = found[(*count)++];
    made = {};
    const uint64_t workspace = scheme == 0 ? 0 : std::min<uint64_t>(wants.workspace, 4096);
    const Algorithm algorithm{7, scheme, workspace};
    std::memcpy(&made.algo, &algorithm, sizeof(algorithm));
    made.workspaceSize = workspace;
    made.state = CUBLAS_STATUS_SUCCESS;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* bytes, size_t size, size_t* written) {
  if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || size != sizeof(uint32_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto scheme = static_cast<uint32_t>(As<Algorithm>(algorithm).reduction);
  std::memcpy(bytes, &scheme, sizeof(scheme));
  *written = sizeof(scheme);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (As<Handle>(handle).device != settings.device) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supports(As<Product>(product), As<Layout>(a), As<Layout>(b), As<Layout>(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  result->workspaceSize = As<Algorithm>(algorithm).workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void*,
                              const void*, cublasLtMatrixLayout_t a, const void*,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* result, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t workspace,
                              cudaStream_t) {
  if (As<Handle>(handle).device != settings.device) return CUBLAS_STATUS_INVALID_VALUE;
  if (As<Algorithm>(algorithm).workspace > workspace) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supports(As<Product>(product), As<Layout>(a), As<Layout>(b), As<Layout>(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  ++settings.runs;
  settings.c = c;
  settings.d = result;
  settings.beta = *static_cast<const float*>(beta);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
