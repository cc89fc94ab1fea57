// SPDX-License-Identifier: Apache-2.0
// The part of cuDNN's C interface that is used here, as a table of functions that are looked up at
// run time: nothing of cuDNN is needed to build. Names and numbers are those of cudnn.h, version 9.
//
// Thread-safety: as cuDNN: one thread at a time for each handle.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_API_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_API_H_

#include <cstddef>

#include "engine/cuda/cudnn_backend_api.h"

namespace lockstep::engine::cuda {

// The values in use of cudnnDataType_t, cudnnTensorFormat_t, cudnnMathType_t,
// cudnnConvolutionMode_t and cudnnDeterminism_t.
enum CudnnType : int {
  kCudnnFloat = 0,
  kCudnnHalf = 2,
  kCudnnInt32 = 4,
  kCudnnBfloat16 = 9,
  kCudnnBoolean = 11
};
inline constexpr int kCudnnChannelsLast = 1;
enum CudnnMath : int { kCudnnDefaultMath = 0, kCudnnTensorMath = 1, kCudnnFmaMath = 3 };
inline constexpr int kCudnnCrossCorrelation = 1;
inline constexpr int kCudnnDeterministic = 1;

// cudnnConvolutionFwdAlgoPerf_t; those of the gradients are the same.
struct CudnnFound {
  int algorithm;
  CudnnStatus status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism;
  int math;
  int reserved[3];
};

// The three functions of a direction. Operands come in the library's order: forward x, w and y; for
// the gradient of the images w, dy and dx; for that of the filters x, dy and dw.
struct CudnnDirection {
  // cudnnGetConvolution*Algorithm_v7: its algorithms, those that it thinks quickest first.
  CudnnStatus (*find)(CudnnObject handle, CudnnObject first, CudnnObject second,
                      CudnnObject convolution, CudnnObject result, int wanted, int* count,
                      CudnnFound* found) = nullptr;
  // cudnnGetConvolution*WorkspaceSize.
  CudnnStatus (*workspace)(CudnnObject handle, CudnnObject first, CudnnObject second,
                           CudnnObject convolution, CudnnObject result, int algorithm,
                           size_t* bytes) = nullptr;
  // cudnnConvolution*.
  CudnnStatus (*run)(CudnnObject handle, const void* alpha, CudnnObject first,
                     const void* first_data, CudnnObject second, const void* second_data,
                     CudnnObject convolution, int algorithm, void* workspace,
                     size_t workspace_bytes, const void* beta, CudnnObject result,
                     void* result_data) = nullptr;
};

struct CudnnApi {
  // The library and its handles; 91900 is version 9.19.0. A handle is for the thread's GPU.
  size_t (*get_version)() = nullptr;
  const char* (*error_string)(CudnnStatus status) = nullptr;
  CudnnStatus (*create)(CudnnObject* handle) = nullptr;
  CudnnStatus (*destroy)(CudnnObject handle) = nullptr;
  CudnnStatus (*set_stream)(CudnnObject handle, void* stream) = nullptr;
  // Descriptors.
  CudnnStatus (*create_tensor)(CudnnObject* tensor) = nullptr;
  CudnnStatus (*destroy_tensor)(CudnnObject tensor) = nullptr;
  CudnnStatus (*set_tensor)(CudnnObject tensor, int format, int type, int images, int channels,
                            int height, int width) = nullptr;
  CudnnStatus (*create_filter)(CudnnObject* filter) = nullptr;
  CudnnStatus (*destroy_filter)(CudnnObject filter) = nullptr;
  CudnnStatus (*set_filter)(CudnnObject filter, int type, int format, int filters, int channels,
                            int height, int width) = nullptr;
  CudnnStatus (*create_convolution)(CudnnObject* convolution) = nullptr;
  CudnnStatus (*destroy_convolution)(CudnnObject convolution) = nullptr;
  CudnnStatus (*set_convolution)(CudnnObject convolution, int pad_height, int pad_width,
                                 int stride_height, int stride_width, int dilation_height,
                                 int dilation_width, int mode, int compute_type) = nullptr;
  CudnnStatus (*set_groups)(CudnnObject convolution, int groups) = nullptr;
  CudnnStatus (*set_math)(CudnnObject convolution, int math) = nullptr;
  // Convolutions.
  CudnnDirection forward;
  CudnnDirection backward_data;
  CudnnDirection backward_filter;
  // Graphs.
  CudnnBackend backend;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_API_H_
