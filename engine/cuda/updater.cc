// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/updater.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/exec/batches.h"
#include "engine/exec/loss_scale.h"
#include "engine/ops/counts.h"
#include "engine/optim/adam.h"

namespace lockstep::engine {
namespace {

using cuda::kUpdateBlock;
using cuda::UpdateBlock;

constexpr int64_t kTail = 16;
// Jordan's coefficients (optim/muon.cc).
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

void AddBlocks(int32_t tensor, int64_t begin, int64_t end, std::vector<UpdateBlock>* blocks) {
  for (int64_t at = begin; at < end; at += kUpdateBlock) {
    blocks->push_back({tensor, at, std::min(at + kUpdateBlock, end)});
  }
}

template <typename T>
absl::StatusOr<T*> Upload(cuda::Device* device, const std::vector<T>& values, const char* what) {
  LS_ASSIGN_OR_RETURN(std::byte * memory, device->Allocate(values.size() * sizeof(T), what));
  LS_RETURN_IF_ERROR(
      device->Copy(memory, values.data(), values.size() * sizeof(T), device->compute()));
  LS_RETURN_IF_ERROR(device->Wait(device->compute()));
  return reinterpret_cast<T*>(memory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaUpdater>> CudaUpdater::Make(const CompiledPlan* plan,
                                                               StateRegion* host,
                                                               cuda::Device* device,
                                                               const Places& places,
                                                               StepClock* clock) {
  std::unique_ptr<CudaUpdater> updater(new CudaUpdater(plan, host, device, places, clock));
  if (!plan->spec().inference) LS_RETURN_IF_ERROR(updater->MakeTables());
  return updater;
}

CudaUpdater::CudaUpdater(const CompiledPlan* plan, StateRegion* host, cuda::Device* device,
                         const Places& places, StepClock* clock)
    : plan_(*plan),
      host_(*host),
      device_(*device),
      places_(places),
      clock_(*clock),
      step_(host->At<int64_t>(plan->Entry("step"))),
      update_count_(host->At<int64_t>(plan->Entry("update_count"))),
      loss_scale_(host->At<double>(plan->Entry("loss_scale"))),
      growth_count_(host->At<int64_t>(plan->Entry("growth_count"))),
      skip_count_(host->At<int64_t>(plan->Entry("skip_count"))) {}

cuda::UpdateTensor CudaUpdater::TensorOf(size_t parameter) const {
  const ParameterSpec& spec = plan_.model().parameters()[parameter];
  const auto at = [&](const std::string& name) { return places_.state + plan_.Entry(name).offset; };
  const auto slot = std::find_if(plan_.layout().slots.begin(), plan_.layout().slots.end(),
                                 [&](const GradientSlot& s) { return s.parameter == spec.name; });
  LS_CHECK(slot != plan_.layout().slots.end()) << spec.name;
  cuda::UpdateTensor tensor;
  tensor.gradient = slot->begin;
  tensor.count = slot->count;
  tensor.weights = {at(spec.name), cuda::TypeOf(plan_.precision().weights())};
  const std::vector<std::string> moments = plan_.optimizer().moments(spec);
  LS_CHECK(moments.size() <= 2) << "a kernel has two moments";
  for (size_t i = 0; i < moments.size(); ++i) {
    tensor.moments[i] = reinterpret_cast<float*>(at(absl::StrCat(spec.name, ".", moments[i])));
  }
  if (plan_.spec().ema_decay > 0) {
    tensor.average = reinterpret_cast<float*>(at(spec.name + kAverageSuffix));
  }
  tensor.learning_rate = plan_.settings()[parameter].learning_rate;
  tensor.weight_decay = plan_.settings()[parameter].weight_decay;
  tensor.rounding_key = SiteKey(plan_.spec().seed, spec.name + ".rounding");
  return tensor;
}

absl::Status CudaUpdater::MakeTables() {
  std::vector<UpdateBlock> all, elementwise, own;
  const std::vector<ParameterSpec>& parameters = plan_.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    cuda::UpdateTensor tensor = TensorOf(i);
    const auto number = static_cast<int32_t>(i);
    tensor.first_block = static_cast<int64_t>(all.size());
    AddBlocks(number, 0, tensor.count, &all);
    tensor.blocks = static_cast<int64_t>(all.size()) - tensor.first_block;
    if (plan_.optimizer().method(parameters[i]) == Optimizer::Method::kMatrix) {
      tensor.direction = reinterpret_cast<float*>(places_.scratch);
      LS_RETURN_IF_ERROR(MakeMatrix(i, tensor, &own));
    } else {
      AddBlocks(number, 0, tensor.count, &elementwise);
    }
    tensors_.push_back(tensor);
  }
  parameter_blocks_ = static_cast<int64_t>(all.size());
  for (const auto& [begin, end] : GapsOf(plan_.layout())) AddBlocks(-1, begin, end, &all);
  block_count_ = static_cast<int64_t>(all.size());
  elementwise_blocks_ = static_cast<int64_t>(elementwise.size());
  LS_ASSIGN_OR_RETURN(device_tensors_, Upload(&device_, tensors_, "the update's table"));
  LS_ASSIGN_OR_RETURN(all_blocks_, Upload(&device_, all, "the update's blocks"));
  LS_ASSIGN_OR_RETURN(elementwise_, Upload(&device_, elementwise, "the update's blocks"));
  LS_ASSIGN_OR_RETURN(own_blocks_, Upload(&device_, own, "the update's blocks"));
  for (Matrix& matrix : matrices_) {
    matrix.own_blocks = own_blocks_;
    own_blocks_ += matrix.blocks;
  }
  const auto count = static_cast<size_t>(block_count_ + 2 * parameter_blocks_);
  LS_ASSIGN_OR_RETURN(std::byte * sums,
                      device_.Allocate(count * sizeof(double), "the gradients' sums"));
  sums_ = reinterpret_cast<double*>(sums);
  const size_t host_bytes = static_cast<size_t>(block_count_) * sizeof(double);
  LS_ASSIGN_OR_RETURN(std::byte * pinned, device_.AllocatePinned(host_bytes + kTail * sizeof(float),
                                                                 "the gradients' sums"));
  host_sums_ = reinterpret_cast<double*>(pinned);
  host_tail_ = reinterpret_cast<float*>(pinned + host_bytes);
  AddStatistics();
  return absl::OkStatus();
}

absl::Status CudaUpdater::MakeMatrix(size_t parameter, const cuda::UpdateTensor& tensor,
                                     std::vector<UpdateBlock>* own) {
  const ParameterSpec& spec = plan_.model().parameters()[parameter];
  const auto& muon = std::get<MuonSpec>(plan_.spec().optimizer);
  Matrix matrix{tensor, CudaUpdateScratch(plan_.optimizer(), spec), 0, 0, nullptr, 1, {}};
  matrix.first_block = tensor.first_block;
  matrix.blocks = tensor.blocks;
  AddBlocks(-1, 0, tensor.count, own);
  const int64_t rows = matrix.scratch.rows, columns = matrix.scratch.columns;
  const int64_t side = matrix.scratch.side;
  const double a = static_cast<double>(rows), b = static_cast<double>(columns);
  matrix.factor =
      muon.match_rms_adamw ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
  cuda::MatmulShape gram, square, step;
  const bool tall = rows > columns;
  gram = {.m = side,
          .n = side,
          .k = std::max(rows, columns),
          .a_transposed = tall,
          .b_transposed = !tall,
          .lda = columns,
          .ldb = columns,
          .ldc = side};
  square = {.m = side, .n = side, .k = side, .lda = side, .ldb = side, .ldc = side};
  step = {.m = rows,
          .n = columns,
          .k = side,
          .lda = tall ? columns : side,
          .ldb = tall ? side : columns,
          .ldc = columns};
  for (const cuda::MatmulShape& shape : {gram, square, step}) {
    LS_ASSIGN_OR_RETURN(cuda::Product product,
                        cuda::Product::Make({&device_.tables(), false}, shape));
    matrix.products.push_back(std::move(product));
  }
  matrices_.push_back(std::move(matrix));
  return absl::OkStatus();
}

void CudaUpdater::AddStatistics() {
  size_t slot = 0;  // in the order of the specs: mean, variance
  for (const StatisticSpec& spec : plan_.model().statistics()) {
    for (const char* what : {".running_mean", ".running_var"}) {
      cuda::StatisticArgs args;
      args.sums = places_.gradients + plan_.layout().statistics[slot++].begin;
      args.running = reinterpret_cast<float*>(places_.state + plan_.Entry(spec.name + what).offset);
      args.count = spec.channels;
      args.momentum = spec.momentum;
      args.batches = static_cast<double>(plan_.spec().shards) * plan_.spec().accumulate;
      statistics_.push_back(args);
    }
    batches_tracked_.push_back(host_.At<int64_t>(plan_.Entry(spec.name + ".num_batches_tracked")));
  }
}

absl::Status CudaUpdater::Measure() {
  cuda::SquaresArgs args;
  args.tensors = device_tensors_;
  args.blocks = all_blocks_;
  args.block_count = block_count_;
  args.gradients = places_.gradients;
  args.sums = sums_;
  const cuda::Stream stream = device_.compute();
  LS_RETURN_IF_ERROR(
      device_.Check(device_.tables().kernels->squares(args, stream), "the gradients' sums"));
  LS_RETURN_IF_ERROR(
      device_.Copy(host_sums_, sums_, static_cast<size_t>(block_count_) * sizeof(double), stream));
  LS_RETURN_IF_ERROR(device_.Copy(host_tail_, places_.gradients + plan_.layout().count - kTail,
                                  kTail * sizeof(float), stream));
  clock_.Pass(StepClock::kMeasured);
  return device_.Wait(stream);
}

StepResult CudaUpdater::Examine() const {
  const GradientLayout& layout = plan_.layout();
  const auto tail = [&](int64_t at) { return host_tail_[at - (layout.count - kTail)]; };
  StepResult result;
  const float loss = tail(layout.loss);
  const SplitCount split{tail(layout.target_count), tail(layout.target_count + 1)};
  const bool counted = std::isfinite(split.high) && std::isfinite(split.low);
  double squares = 0;
  for (int64_t i = 0; i < parameter_blocks_; ++i) squares += host_sums_[i];
  result.finite = std::isfinite(squares) && std::isfinite(loss) && counted;
  for (int64_t i = parameter_blocks_; i < block_count_; ++i) {
    result.finite = result.finite && std::isfinite(host_sums_[i]);
  }
  if (counted) result.valid_targets = Join(split);
  const double n = static_cast<double>(result.valid_targets);
  if (n > 0) {
    result.loss = static_cast<double>(loss) / n;
    if (plan_.spec().clip_norm > 0) {
      result.gradient_norm =
          std::sqrt(squares) * static_cast<double>(plan_.nominal_targets()) / (n * *loss_scale_);
    }
  }
  result.skipped = !result.finite || n == 0;
  if (result.finite) return result;
  result.nonfinite = "the loss";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const double* sums = host_sums_ + tensors_[i].first_block;
    if (std::all_of(sums, sums + tensors_[i].blocks, [](double x) { return std::isfinite(x); })) {
      continue;
    }
    result.nonfinite = plan_.model().parameters()[i].name;
    break;
  }
  return result;
}

cuda::UpdateArgs CudaUpdater::ArgsFor(const StepResult& result, double schedule) const {
  cuda::UpdateArgs args;
  args.tensors = device_tensors_;
  args.gradients = places_.gradients;
  args.parameter_sums = sums_ + block_count_;
  args.direction_sums = args.parameter_sums + parameter_blocks_;
  args.index = *update_count_;
  args.schedule = schedule;
  args.scale = static_cast<double>(plan_.nominal_targets()) /
               (static_cast<double>(result.valid_targets) * *loss_scale_);
  // As torch.nn.utils.clip_grad_norm_.
  const double clip = plan_.spec().clip_norm;
  if (clip > 0) args.scale *= std::min(1.0, clip / (result.gradient_norm + 1e-6));
  if (plan_.spec().ema_decay > 0) args.ema_rate = 1 - plan_.spec().ema_decay;
  return args;
}

namespace {

void SetMoments(double beta1, double beta2, double eps, cuda::UpdateArgs* args) {
  Optimizer::Update update;
  update.index = args->index;
  const AdamArgs from = MomentArgs(update, beta1, beta2, eps);
  args->rate1 = from.rate1;
  args->beta2 = from.beta2;
  args->rate2 = from.rate2;
  args->correction1 = from.correction1;
  args->correction2 = from.correction2;
  args->eps = from.eps;
}

// The rules of an optimizer's elementwise launches, in order.
struct Rules {
  cuda::UpdateArgs args;
  std::vector<cuda::Rule> operator()(const SgdSpec& spec) {
    args.momentum = static_cast<float>(spec.momentum);
    args.keep = static_cast<float>(1 - spec.dampening);
    args.nesterov = spec.nesterov;
    return {cuda::Rule::kSgd};
  }
  std::vector<cuda::Rule> operator()(const AdamSpec& spec) {
    SetMoments(spec.beta1, spec.beta2, spec.eps, &args);
    args.decoupled = spec.decoupled;
    return {cuda::Rule::kAdam};
  }
  std::vector<cuda::Rule> operator()(const LambSpec& spec) {
    SetMoments(spec.beta1, spec.beta2, spec.eps, &args);
    return {cuda::Rule::kLambMeasure, cuda::Rule::kLambMove};
  }
  std::vector<cuda::Rule> operator()(const MuonSpec& spec) { return (*this)(spec.adamw); }
};

}  // namespace

absl::Status CudaUpdater::Apply(const cuda::UpdateArgs& args) {
  Rules rules{args};
  const std::vector<cuda::Rule> list = std::visit(rules, plan_.spec().optimizer);
  for (const cuda::Rule rule : list) {
    cuda::UpdateArgs own = rules.args;
    own.rule = rule;
    own.blocks = elementwise_;
    own.block_count = elementwise_blocks_;
    LS_RETURN_IF_ERROR(device_.Check(device_.tables().kernels->update(own, device_.compute()),
                                     "the optimizer's step"));
  }
  for (const Matrix& matrix : matrices_) LS_RETURN_IF_ERROR(ApplyMatrix(args, matrix));
  return absl::OkStatus();
}

absl::Status CudaUpdater::ApplyMatrix(const cuda::UpdateArgs& args, const Matrix& matrix) {
  const auto& muon = std::get<MuonSpec>(plan_.spec().optimizer);
  const cuda::Kernels& kernels = *device_.tables().kernels;
  const cuda::Stream stream = device_.compute();
  const auto floats = [&](size_t bytes) {
    return reinterpret_cast<float*>(places_.scratch + bytes);
  };
  cuda::UpdateArgs direct = args;
  direct.rule = cuda::Rule::kMuonDirection;
  direct.blocks = all_blocks_ + matrix.first_block;
  direct.block_count = matrix.blocks;
  direct.rate1 = static_cast<float>(1 - muon.momentum);
  direct.nesterov = muon.nesterov;
  cuda::Code code = kernels.update(direct, stream);
  float *x = floats(0), *next = floats(matrix.scratch.next);
  if (code == 0) {
    cuda::SquaresArgs squares{nullptr, matrix.own_blocks, matrix.blocks, x, args.parameter_sums};
    code = kernels.squares(squares, stream);
  }
  if (code == 0) {
    code = kernels.normalise({x, matrix.tensor.count, args.parameter_sums, matrix.blocks, muon.eps},
                             stream);
  }
  float *gram = floats(matrix.scratch.gram), *square = floats(matrix.scratch.square);
  CudaContext context;
  context.stream = stream;
  context.workspace = places_.workspace;
  // out (+)= factor in.
  const auto scale = [&](float* in, float factor, int64_t count, bool adds, float* out) {
    cuda::PointwiseArgs pointwise;
    pointwise.function = cuda::Function::kScale;
    pointwise.a = {in, cuda::Type::kF32};
    pointwise.out = {out, cuda::Type::kF32};
    pointwise.factor = factor;
    pointwise.count = count;
    pointwise.adds = adds;
    if (code == 0) code = kernels.pointwise(pointwise, stream);
  };
  const auto multiply = [&](size_t product, const float* a, const float* b, float* c) {
    if (code == 0) code = matrix.products[product].Run(context, a, b, c);
  };
  const int64_t squares = matrix.scratch.side * matrix.scratch.side;
  const bool tall = matrix.scratch.rows > matrix.scratch.columns;
  for (int i = 0; i < muon.ns_steps; ++i) {
    multiply(0, x, x, gram);
    multiply(1, gram, gram, square);
    scale(square, kC, squares, false, square);
    scale(gram, kB, squares, true, square);
    multiply(2, tall ? x : square, tall ? square : x, next);
    scale(x, kA, matrix.tensor.count, true, next);
    std::swap(x, next);
  }
  const double lr = matrix.tensor.learning_rate * args.schedule;
  cuda::MoveArgs move;
  move.tensor = matrix.tensor;
  move.x = x;
  move.keep = static_cast<float>(1 - lr * matrix.tensor.weight_decay);
  move.step = static_cast<float>(lr * matrix.factor);
  move.index = args.index;
  move.ema_rate = args.ema_rate;
  if (code == 0) code = kernels.move(move, stream);
  return device_.Check(code, "Muon's step");
}

absl::Status CudaUpdater::UpdateStatistics() const {
  for (const cuda::StatisticArgs& args : statistics_) {
    LS_RETURN_IF_ERROR(device_.Check(device_.tables().kernels->statistic(args, device_.compute()),
                                     "running statistics"));
  }
  for (int64_t* count : batches_tracked_) ++*count;
  return absl::OkStatus();
}

void CudaUpdater::Count(const StepResult& result, int64_t step) {
  // A step without any target says nothing about the scale.
  if (plan_.scales_loss() && (!result.finite || result.valid_targets > 0)) {
    UpdateLossScale(plan_.spec().loss_scale, !result.finite, loss_scale_, growth_count_);
  }
  *skip_count_ = result.finite ? 0 : *skip_count_ + 1;
  *step_ = step;
}

StepResult CudaUpdater::Update(int64_t step) {
  LS_CHECK_EQ(step, *step_ + 1) << "the state is not that before this step";
  const StateRegion::Writing writing(&host_);
  absl::Status status = Measure();
  LS_CHECK(status.ok()) << status;
  StepResult result = Examine();
  result.loss_scale = *loss_scale_;
  const double schedule = ScheduleFactor(plan_.spec().schedule, *update_count_);
  result.learning_rate = plan_.optimizer().learning_rate() * schedule;
  clock_.Pass(StepClock::kUpdateBegin);
  if (!result.skipped) {
    status = Apply(ArgsFor(result, schedule));
    if (status.ok()) status = UpdateStatistics();
    LS_CHECK(status.ok()) << status;
    ++*update_count_;
  }
  clock_.Pass(StepClock::kUpdateEnd);
  Count(result, step);
  result.skipped_in_a_row = *skip_count_;
  return result;
}

}  // namespace lockstep::engine
