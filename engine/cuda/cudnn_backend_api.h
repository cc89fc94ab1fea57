// SPDX-License-Identifier: Apache-2.0
// cuDNN's graph interface ("backend"): descriptors whose attributes are set one by one. Names and
// numbers are those of cudnn_graph.h, version 9; a test compares them with the header where it is
// installed. Thread-safety: as cuDNN: one thread at a time for each handle and descriptor.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_BACKEND_API_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_BACKEND_API_H_

#include <cstdint>

namespace lockstep::engine::cuda {

using CudnnStatus = int;    // cudnnStatus_t; 0 is success
using CudnnObject = void*;  // cudnnHandle_t and descriptors

// Those in use of cudnnBackendDescriptorType_t.
enum class CudnnKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kKnobChoice = 7,
  kConvolutionOperation = 10,
  kFilterGradientOperation = 11,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDeviceProperties = 38,  // from 9.8 on
};

// Of cudnnBackendAttributeName_t.
enum class CudnnAttribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kConvolutionPrecision = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPaddingAfter = 104,
  kConvolutionPaddingBefore = 105,
  kConvolutionAxes = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kConfigKnobs = 302,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  kKnobType = 600,
  kKnobValue = 601,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardDescriptor = 702,
  kForwardFilters = 703,
  kForwardImages = 704,
  kForwardResult = 705,
  kFilterGradientAlpha = 712,
  kFilterGradientBeta = 713,
  kFilterGradientDescriptor = 714,
  kFilterGradientResult = 715,
  kFilterGradientImages = 716,
  kFilterGradientPlaces = 717,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorExtents = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineGraph = 1300,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kEngineDevice = 1307,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kReductionMode = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceJson = 2702,
};

// Of cudnnBackendAttributeType_t.
enum class CudnnAttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicsMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionMode = 18,
  kChar = 24,
};

// Of cudnnPointwiseMode_t.
enum class CudnnPointwise : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kRelu = 100,
  kNotLess = 303,
  kIndex = 501,
  kSelect = 601,
};

// Of cudnnReduceTensorOp_t.
enum class CudnnReduction : int { kSum = 0, kMaximum = 3 };

// Of cudnnBackendHeurMode_t.
enum class CudnnHeuristics : int { kFallback = 2, kBest = 3 };

// Of cudnnBackendNumericalNote_t; there are no more than kCudnnNotes.
inline constexpr int kCudnnNotDeterministic = 4;
inline constexpr int kCudnnNotes = 32;
// There are no more kinds of knobs.
inline constexpr int kCudnnKnobs = 64;

struct CudnnBackend {
  // cudnnBackendCreateDescriptor: an empty descriptor, the caller's to destroy.
  CudnnStatus (*create)(CudnnKind kind, CudnnObject* descriptor) = nullptr;
  // cudnnBackendDestroyDescriptor.
  CudnnStatus (*destroy)(CudnnObject descriptor) = nullptr;
  // cudnnBackendSetAttribute.
  CudnnStatus (*set)(CudnnObject descriptor, CudnnAttribute attribute, CudnnAttributeType type,
                     int64_t count, const void* values) = nullptr;
  // cudnnBackendFinalize: checks it; it cannot be set any more, and can be used and read.
  CudnnStatus (*finalize)(CudnnObject descriptor) = nullptr;
  // cudnnBackendGetAttribute: at most `wanted` values; *count says how many.
  CudnnStatus (*get)(CudnnObject descriptor, CudnnAttribute attribute, CudnnAttributeType type,
                     int64_t wanted, int64_t* count, void* values) = nullptr;
  // cudnnBackendExecute, on the handle's stream.
  CudnnStatus (*execute)(CudnnObject handle, CudnnObject plan, CudnnObject pack) = nullptr;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_BACKEND_API_H_
