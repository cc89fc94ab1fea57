// SPDX-License-Identifier: Apache-2.0
// The rules of an update on a GPU: which launches an optimizer's step is made of.
#include <algorithm>
#include <vector>

#include "common/status.h"
#include "engine/cuda/updater.h"
#include "engine/optim/adam.h"

namespace lockstep::engine {
namespace {

// Jordan's coefficients (optim/muon.cc).
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

}  // namespace

cuda::UpdateArgs CudaUpdater::SharedArgs() const {
  cuda::UpdateArgs args;
  args.tensors = held_tensors_;
  args.gradients = places_.gradients;
  args.parameter_sums = sums_ + block_count_;
  args.direction_sums = args.parameter_sums + parameter_blocks_;
  args.now = now_;
  if (plan_.spec().ema_decay > 0) args.ema_rate = 1 - plan_.spec().ema_decay;
  return args;
}

namespace {

// Of the optimizer's two moments; none of SGD.
struct MomentsAt {
  int64_t index;
  AdamArgs operator()(const SgdSpec&) const { return {}; }
  AdamArgs operator()(const AdamSpec& spec) const { return Of(spec.beta1, spec.beta2, spec.eps); }
  AdamArgs operator()(const LambSpec& spec) const { return Of(spec.beta1, spec.beta2, spec.eps); }
  AdamArgs operator()(const MuonSpec& spec) const { return (*this)(spec.adamw); }
  AdamArgs Of(double beta1, double beta2, double eps) const {
    Optimizer::Update update;
    update.index = index;
    return MomentArgs(update, beta1, beta2, eps);
  }
};

}  // namespace

void CudaUpdater::SetNow(double schedule) {
  const AdamArgs moments = std::visit(MomentsAt{*update_count_}, plan_.spec().optimizer);
  next_->index = *update_count_;
  next_->schedule = schedule;
  next_->loss_scale = *loss_scale_;
  next_->correction1 = moments.correction1;
  next_->correction2 = moments.correction2;
}

namespace {

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
    SetMoments(spec);
    args.decoupled = spec.decoupled;
    return {cuda::Rule::kAdam};
  }
  std::vector<cuda::Rule> operator()(const LambSpec& spec) {
    SetMoments(spec);
    return {cuda::Rule::kLambMeasure, cuda::Rule::kLambMove};
  }
  std::vector<cuda::Rule> operator()(const MuonSpec& spec) { return (*this)(spec.adamw); }
  // Sets what does not change from step to step.
  template <typename Spec>
  void SetMoments(const Spec& spec) {
    const AdamArgs from = MomentsAt{0}(spec);
    args.rate1 = from.rate1;
    args.beta2 = from.beta2;
    args.rate2 = from.rate2;
    args.eps = from.eps;
  }
};

}  // namespace

absl::Status CudaUpdater::Launch(bool beside) {
  // What is elsewhere comes over streams of its own.
  if (plan_.spec().offload_moments) return LaunchAll(beside);
  return Replay(&recorded_[beside ? 1 : 0], [&] { return LaunchAll(beside); });
}

absl::Status CudaUpdater::Replay(Recorded* known, const Programs& launches) {
  if (known->runs++ == 0) return launches();
  const cuda::Runtime& runtime = device_.runtime();
  if (known->recording == nullptr) {
    LS_RETURN_IF_ERROR(device_.Check(runtime.begin_capture(device_.compute()), "recording"));
    const absl::Status launched = launches();
    cuda::Recording recording = nullptr;
    const cuda::Code ended = runtime.end_capture(device_.compute(), &recording);
    absl::Status whole = launched;
    whole.Update(device_.Check(ended, "recording"));
    // What was recorded before something failed is a part of it.
    if (!whole.ok() && recording != nullptr) runtime.destroy_graph(recording);
    LS_RETURN_IF_ERROR(whole);
    known->recording = recording;
  }
  return device_.Check(runtime.launch_graph(known->recording, device_.compute()), "an update");
}

absl::Status CudaUpdater::LaunchAll(bool beside) {
  cuda::UpdateArgs args = SharedArgs();
  if (beside) args.beside = places_.gradients;
  LS_RETURN_IF_ERROR(Apply(args));
  return UpdateStatistics();
}

void CudaUpdater::ForgetRecorded() {
  for (Recorded* const list : {recorded_, whole_}) {
    for (int i = 0; i < 2; ++i) {
      if (list[i].recording != nullptr) device_.runtime().destroy_graph(list[i].recording);
      list[i] = {};
    }
  }
}

absl::Status CudaUpdater::Apply(const cuda::UpdateArgs& args) {
  Rules rules{args};
  const std::vector<cuda::Rule> list = std::visit(rules, plan_.spec().optimizer);
  for (const cuda::Rule rule : list) {
    cuda::UpdateArgs own = rules.args;
    own.rule = rule;
    LS_RETURN_IF_ERROR(ApplyRule(own));
  }
  for (const Matrix& matrix : matrices_) LS_RETURN_IF_ERROR(ApplyMatrix(args, matrix));
  return moments_->Settle();
}

absl::Status CudaUpdater::ApplyRule(const cuda::UpdateArgs& args) {
  for (size_t chunk = 0; chunk < chunk_blocks_.size(); ++chunk) {
    const ChunkBlocks& blocks = chunk_blocks_[chunk];
    if (blocks.count == 0) continue;
    LS_RETURN_IF_ERROR(moments_->Bring(chunk));
    cuda::UpdateArgs own = args;
    own.blocks = elementwise_ + blocks.begin;
    own.block_count = blocks.count;
    // Sums are by block of the parameters, all of which are held where there are sums.
    own.first_block = blocks.begin;
    LS_RETURN_IF_ERROR(device_.Check(device_.tables().kernels->update(own, device_.compute()),
                                     "the optimizer's step"));
    LS_RETURN_IF_ERROR(moments_->Take(chunk, args.rule != cuda::Rule::kLambMove));
  }
  return absl::OkStatus();
}

absl::Status CudaUpdater::ApplyMatrix(const cuda::UpdateArgs& args, const Matrix& matrix) {
  const auto& muon = std::get<MuonSpec>(plan_.spec().optimizer);
  const cuda::Kernels& kernels = *device_.tables().kernels;
  const cuda::Stream stream = device_.compute();
  const auto floats = [&](size_t bytes) { return reinterpret_cast<float*>(places_.arena + bytes); };
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
  cuda::MoveArgs move;
  move.tensor = matrix.tensor;
  move.x = x;
  move.factor = matrix.factor;
  move.now = args.now;
  move.ema_rate = args.ema_rate;
  if (code == 0) code = kernels.move(move, stream);
  return device_.Check(code, "Muon's step");
}

}  // namespace lockstep::engine
