// SPDX-License-Identifier: Apache-2.0
// The numbers and structures of cuDNN's interface that the engine declares for itself, against the
// library's own header, where it is installed.
#include <cudnn.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "engine/cuda/cudnn_api.h"

namespace lockstep::engine::cuda {
namespace {

#if CUDNN_VERSION < 90800

TEST(CudnnNumbers, AreThoseOfTheHeader) { GTEST_SKIP() << "a header older than 9.8 lacks some"; }

#else

#define CHECK_NUMBER(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))

CHECK_NUMBER(CudnnKind::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kKnobChoice, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kConvolutionOperation,
             CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kFilterGradientOperation,
             CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kMatmulOperation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kReshapeOperation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
CHECK_NUMBER(CudnnKind::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
CHECK_NUMBER(CudnnAttribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
CHECK_NUMBER(CudnnAttribute::kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
CHECK_NUMBER(CudnnAttribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
CHECK_NUMBER(CudnnAttribute::kConvolutionPrecision, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
CHECK_NUMBER(CudnnAttribute::kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
CHECK_NUMBER(CudnnAttribute::kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
CHECK_NUMBER(CudnnAttribute::kConvolutionStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
CHECK_NUMBER(CudnnAttribute::kConvolutionPaddingAfter, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
CHECK_NUMBER(CudnnAttribute::kConvolutionPaddingBefore, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
CHECK_NUMBER(CudnnAttribute::kConvolutionAxes, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
CHECK_NUMBER(CudnnAttribute::kForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
CHECK_NUMBER(CudnnAttribute::kForwardBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
CHECK_NUMBER(CudnnAttribute::kForwardDescriptor,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
CHECK_NUMBER(CudnnAttribute::kForwardFilters, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
CHECK_NUMBER(CudnnAttribute::kForwardImages, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
CHECK_NUMBER(CudnnAttribute::kForwardResult, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
CHECK_NUMBER(CudnnAttribute::kFilterGradientAlpha,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
CHECK_NUMBER(CudnnAttribute::kFilterGradientBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
CHECK_NUMBER(CudnnAttribute::kFilterGradientDescriptor,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
CHECK_NUMBER(CudnnAttribute::kFilterGradientResult, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
CHECK_NUMBER(CudnnAttribute::kFilterGradientImages, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
CHECK_NUMBER(CudnnAttribute::kFilterGradientPlaces, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
CHECK_NUMBER(CudnnAttribute::kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE);
CHECK_NUMBER(CudnnAttribute::kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
CHECK_NUMBER(CudnnAttribute::kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
CHECK_NUMBER(CudnnAttribute::kHeuristicsDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
CHECK_NUMBER(CudnnAttribute::kConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
CHECK_NUMBER(CudnnAttribute::kConfigKnobs, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
CHECK_NUMBER(CudnnAttribute::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
CHECK_NUMBER(CudnnAttribute::kPlanConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
CHECK_NUMBER(CudnnAttribute::kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
CHECK_NUMBER(CudnnAttribute::kPlanDevice, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
CHECK_NUMBER(CudnnAttribute::kKnobType, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
CHECK_NUMBER(CudnnAttribute::kKnobValue, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
CHECK_NUMBER(CudnnAttribute::kPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
CHECK_NUMBER(CudnnAttribute::kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
CHECK_NUMBER(CudnnAttribute::kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
CHECK_NUMBER(CudnnAttribute::kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
CHECK_NUMBER(CudnnAttribute::kPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
CHECK_NUMBER(CudnnAttribute::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
CHECK_NUMBER(CudnnAttribute::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
CHECK_NUMBER(CudnnAttribute::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
CHECK_NUMBER(CudnnAttribute::kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE);
CHECK_NUMBER(CudnnAttribute::kTensorExtents, CUDNN_ATTR_TENSOR_DIMENSIONS);
CHECK_NUMBER(CudnnAttribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
CHECK_NUMBER(CudnnAttribute::kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
CHECK_NUMBER(CudnnAttribute::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
CHECK_NUMBER(CudnnAttribute::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
CHECK_NUMBER(CudnnAttribute::kPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
CHECK_NUMBER(CudnnAttribute::kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
CHECK_NUMBER(CudnnAttribute::kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
CHECK_NUMBER(CudnnAttribute::kEngineGraph, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
CHECK_NUMBER(CudnnAttribute::kEngineIndex, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
CHECK_NUMBER(CudnnAttribute::kEngineNumericalNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
CHECK_NUMBER(CudnnAttribute::kEngineDevice, CUDNN_ATTR_ENGINE_DEVICEPROP);
CHECK_NUMBER(CudnnAttribute::kMatmulPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE);
CHECK_NUMBER(CudnnAttribute::kMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
CHECK_NUMBER(CudnnAttribute::kMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
CHECK_NUMBER(CudnnAttribute::kMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
CHECK_NUMBER(CudnnAttribute::kMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
CHECK_NUMBER(CudnnAttribute::kReductionMode, CUDNN_ATTR_REDUCTION_OPERATOR);
CHECK_NUMBER(CudnnAttribute::kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE);
CHECK_NUMBER(CudnnAttribute::kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
CHECK_NUMBER(CudnnAttribute::kReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
CHECK_NUMBER(CudnnAttribute::kReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
CHECK_NUMBER(CudnnAttribute::kReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
CHECK_NUMBER(CudnnAttribute::kReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
CHECK_NUMBER(CudnnAttribute::kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
CHECK_NUMBER(CudnnAttributeType::kHandle, CUDNN_TYPE_HANDLE);
CHECK_NUMBER(CudnnAttributeType::kDataType, CUDNN_TYPE_DATA_TYPE);
CHECK_NUMBER(CudnnAttributeType::kBoolean, CUDNN_TYPE_BOOLEAN);
CHECK_NUMBER(CudnnAttributeType::kInt64, CUDNN_TYPE_INT64);
CHECK_NUMBER(CudnnAttributeType::kFloat, CUDNN_TYPE_FLOAT);
CHECK_NUMBER(CudnnAttributeType::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
CHECK_NUMBER(CudnnAttributeType::kPointer, CUDNN_TYPE_VOID_PTR);
CHECK_NUMBER(CudnnAttributeType::kHeuristicsMode, CUDNN_TYPE_HEUR_MODE);
CHECK_NUMBER(CudnnAttributeType::kKnobType, CUDNN_TYPE_KNOB_TYPE);
CHECK_NUMBER(CudnnAttributeType::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
CHECK_NUMBER(CudnnAttributeType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
CHECK_NUMBER(CudnnAttributeType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
CHECK_NUMBER(CudnnAttributeType::kReductionMode, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
CHECK_NUMBER(CudnnAttributeType::kChar, CUDNN_TYPE_CHAR);
CHECK_NUMBER(CudnnPointwise::kAdd, CUDNN_POINTWISE_ADD);
CHECK_NUMBER(CudnnPointwise::kMultiply, CUDNN_POINTWISE_MUL);
CHECK_NUMBER(CudnnPointwise::kDivide, CUDNN_POINTWISE_DIV);
CHECK_NUMBER(CudnnPointwise::kSubtract, CUDNN_POINTWISE_SUB);
CHECK_NUMBER(CudnnPointwise::kExp, CUDNN_POINTWISE_EXP);
CHECK_NUMBER(CudnnPointwise::kLog, CUDNN_POINTWISE_LOG);
CHECK_NUMBER(CudnnPointwise::kIdentity, CUDNN_POINTWISE_IDENTITY);
CHECK_NUMBER(CudnnPointwise::kRelu, CUDNN_POINTWISE_RELU_FWD);
CHECK_NUMBER(CudnnPointwise::kNotLess, CUDNN_POINTWISE_CMP_GE);
CHECK_NUMBER(CudnnPointwise::kIndex, CUDNN_POINTWISE_GEN_INDEX);
CHECK_NUMBER(CudnnPointwise::kSelect, CUDNN_POINTWISE_BINARY_SELECT);
CHECK_NUMBER(CudnnReduction::kSum, CUDNN_REDUCE_TENSOR_ADD);
CHECK_NUMBER(CudnnReduction::kMaximum, CUDNN_REDUCE_TENSOR_MAX);
CHECK_NUMBER(CudnnHeuristics::kFallback, CUDNN_HEUR_MODE_FALLBACK);
CHECK_NUMBER(CudnnHeuristics::kBest, CUDNN_HEUR_MODE_A);
CHECK_NUMBER(kCudnnFloat, CUDNN_DATA_FLOAT);
CHECK_NUMBER(kCudnnHalf, CUDNN_DATA_HALF);
CHECK_NUMBER(kCudnnInt32, CUDNN_DATA_INT32);
CHECK_NUMBER(kCudnnBfloat16, CUDNN_DATA_BFLOAT16);
CHECK_NUMBER(kCudnnBoolean, CUDNN_DATA_BOOLEAN);
CHECK_NUMBER(kCudnnNotDeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
CHECK_NUMBER(kCudnnDefaultMath, CUDNN_DEFAULT_MATH);
CHECK_NUMBER(kCudnnTensorMath, CUDNN_TENSOR_OP_MATH);
CHECK_NUMBER(kCudnnFmaMath, CUDNN_FMA_MATH);
CHECK_NUMBER(kCudnnCrossCorrelation, CUDNN_CROSS_CORRELATION);
CHECK_NUMBER(kCudnnChannelsLast, CUDNN_TENSOR_NHWC);
CHECK_NUMBER(kCudnnDeterministic, CUDNN_DETERMINISTIC);

static_assert(CUDNN_NUMERICAL_NOTE_TYPE_COUNT <= kCudnnNotes);
static_assert(CUDNN_KNOB_TYPE_COUNTS <= kCudnnKnobs);
static_assert(sizeof(CudnnFound) == sizeof(cudnnConvolutionFwdAlgoPerf_t));
static_assert(std::is_pointer_v<cudnnHandle_t> && std::is_pointer_v<cudnnBackendDescriptor_t>);

// Whether a function of the library can be called as one of ours: parameters of the same sizes.
template <typename Ours, typename Theirs>
struct CanBeCalledAs : std::false_type {};
template <typename... Ours, typename... Theirs>
struct CanBeCalledAs<CudnnStatus (*)(Ours...), cudnnStatus_t(Theirs...)>
    : std::bool_constant<((sizeof(Ours) == sizeof(Theirs)) && ...)> {};

#define CHECK_FUNCTION(ours, theirs) \
  static_assert(CanBeCalledAs<decltype(CudnnBackend::ours), decltype(theirs)>::value)

CHECK_FUNCTION(create, cudnnBackendCreateDescriptor);
CHECK_FUNCTION(destroy, cudnnBackendDestroyDescriptor);
CHECK_FUNCTION(set, cudnnBackendSetAttribute);
CHECK_FUNCTION(finalize, cudnnBackendFinalize);
CHECK_FUNCTION(get, cudnnBackendGetAttribute);
CHECK_FUNCTION(execute, cudnnBackendExecute);

TEST(CudnnNumbers, AreThoseOfTheHeader) { SUCCEED() << "as they compile"; }

#endif

}  // namespace
}  // namespace lockstep::engine::cuda
