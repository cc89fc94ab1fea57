// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/updater.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/exec/batches.h"
#include "engine/exec/loss_scale.h"
#include "engine/ops/counts.h"

namespace lockstep::engine {
namespace {

using cuda::kUpdateBlock;
using cuda::UpdateBlock;

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

absl::StatusOr<std::unique_ptr<CudaUpdater>> CudaUpdater::Make(
    const CompiledPlan* plan, StateRegion* host, cuda::Device* device, const Places& places,
    size_t moment_bytes, StepClock* clock) {
  std::unique_ptr<CudaUpdater> updater(new CudaUpdater(plan, host, device, places, clock));
  LS_ASSIGN_OR_RETURN(updater->moments_, CudaMoments::Make(plan, host, device, moment_bytes));
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

CudaUpdater::~CudaUpdater() { ForgetRecorded(); }

cuda::UpdateTensor CudaUpdater::TensorOf(size_t parameter) const {
  const ParameterSpec& spec = plan_.model().parameters()[parameter];
  const auto at = [&](const std::string& name) {
    return places_.state.At(plan_.Entry(name).offset);
  };
  const auto slot = std::find_if(plan_.layout().slots.begin(), plan_.layout().slots.end(),
                                 [&](const GradientSlot& s) { return s.parameter == spec.name; });
  LS_CHECK(slot != plan_.layout().slots.end()) << spec.name;
  cuda::UpdateTensor tensor;
  tensor.gradient = slot->begin;
  tensor.count = slot->count;
  tensor.weights = {at(spec.name), cuda::TypeOf(plan_.precision().weights())};
  const auto copy = plan_.weight_copies().find(spec.name);
  if (copy != plan_.weight_copies().end()) {
    tensor.copy = {places_.arena + copy->second.offset, cuda::TypeOf(copy->second.type)};
  }
  LS_CHECK(plan_.optimizer().moments(spec).size() <= 2) << "a kernel has two moments";
  if (plan_.spec().ema_decay > 0) {
    tensor.average = reinterpret_cast<float*>(at(spec.name + kAverageSuffix));
  }
  tensor.learning_rate = plan_.settings()[parameter].learning_rate;
  tensor.weight_decay = plan_.settings()[parameter].weight_decay;
  tensor.rounding_key = SiteKey(plan_.spec().seed, spec.name + ".rounding");
  return tensor;
}

absl::Status CudaUpdater::MakeTables() {
  std::vector<UpdateBlock>& all = blocks_;
  const std::vector<ParameterSpec>& parameters = plan_.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    cuda::UpdateTensor tensor = TensorOf(i);
    const auto number = static_cast<int32_t>(i);
    tensor.first_block = static_cast<int64_t>(all.size());
    AddBlocks(number, 0, tensor.count, &all);
    tensor.blocks = static_cast<int64_t>(all.size()) - tensor.first_block;
    tensor.direction = reinterpret_cast<float*>(places_.arena);
    tensors_.push_back(tensor);
  }
  parameter_blocks_ = static_cast<int64_t>(all.size());
  for (const auto& [begin, end] : GapsOf(plan_.layout())) AddBlocks(-1, begin, end, &all);
  block_count_ = static_cast<int64_t>(all.size());
  LS_CHECK_EQ(all.size(), plan_.SumBlocks().size());
  LS_ASSIGN_OR_RETURN(device_tensors_, Upload(&device_, tensors_, "the update's table"));
  LS_ASSIGN_OR_RETURN(all_blocks_, Upload(&device_, all, "the update's blocks"));
  LS_ASSIGN_OR_RETURN(
      std::byte * held,
      device_.Allocate(moments_->most_pieces() * sizeof(cuda::UpdateTensor), "the update's table"));
  held_tensors_ = reinterpret_cast<cuda::UpdateTensor*>(held);
  LS_ASSIGN_OR_RETURN(
      std::byte * blocks,
      device_.Allocate(moments_->most_blocks() * sizeof(UpdateBlock), "the update's blocks"));
  elementwise_ = reinterpret_cast<UpdateBlock*>(blocks);
  if (plan_.spec().shard_moments) {
    LS_ASSIGN_OR_RETURN(summed_, Upload(&device_, all, "the update's blocks"));
  } else {
    LS_RETURN_IF_ERROR(Hold(CudaMoments::AllOf(plan_)));
  }
  LS_RETURN_IF_ERROR(MakeMatrices());
  const auto count = static_cast<size_t>(block_count_ + 2 * parameter_blocks_);
  LS_ASSIGN_OR_RETURN(std::byte * sums,
                      device_.Allocate(count * sizeof(double), "the gradients' sums"));
  sums_ = reinterpret_cast<double*>(sums);
  LS_RETURN_IF_ERROR(MakeDecision());
  AddStatistics();
  return absl::OkStatus();
}

absl::Status CudaUpdater::Hold(const std::vector<CudaMoments::Piece>& pieces) {
  ForgetRecorded();
  LS_RETURN_IF_ERROR(moments_->Hold(pieces));
  std::vector<cuda::UpdateTensor> tensors;
  std::vector<UpdateBlock> blocks;
  chunk_blocks_.clear();
  for (const CudaMoments::Chunk& chunk : moments_->chunks()) {
    const auto begin = static_cast<int64_t>(blocks.size());
    for (size_t p = chunk.begin; p < chunk.end; ++p) {
      const CudaMoments::Piece& piece = moments_->pieces()[p];
      const ParameterSpec& spec = plan_.model().parameters()[piece.parameter];
      cuda::UpdateTensor tensor = tensors_[piece.parameter];
      tensor.first = piece.first;
      tensor.count = piece.count;
      tensor.gradient += piece.first;
      tensor.weights = cuda::From(tensor.weights, piece.first);
      if (tensor.copy.data != nullptr) tensor.copy = cuda::From(tensor.copy, piece.first);
      if (tensor.average != nullptr) tensor.average += piece.first;
      for (size_t m = 0; m < plan_.optimizer().moments(spec).size(); ++m) {
        tensor.moments[m] = moments_->At(p, m);
      }
      tensors.push_back(tensor);
      if (plan_.optimizer().method(spec) == Optimizer::Method::kMatrix) continue;
      AddBlocks(static_cast<int32_t>(p), 0, piece.count, &blocks);
    }
    chunk_blocks_.push_back({begin, static_cast<int64_t>(blocks.size()) - begin});
  }
  LS_CHECK(tensors.size() <= moments_->most_pieces() && blocks.size() <= moments_->most_blocks());
  const cuda::Stream stream = device_.compute();
  LS_RETURN_IF_ERROR(
      device_.Copy(held_tensors_, tensors.data(), tensors.size() * sizeof(tensors[0]), stream));
  LS_RETURN_IF_ERROR(
      device_.Copy(elementwise_, blocks.data(), blocks.size() * sizeof(blocks[0]), stream));
  return device_.Wait(stream);
}

absl::Status CudaUpdater::MakeMatrices() {
  std::vector<UpdateBlock> own;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const ParameterSpec& spec = plan_.model().parameters()[i];
    if (plan_.optimizer().method(spec) != Optimizer::Method::kMatrix) continue;
    LS_RETURN_IF_ERROR(MakeMatrix(i, tensors_[i], &own));
  }
  LS_ASSIGN_OR_RETURN(own_blocks_, Upload(&device_, own, "the update's blocks"));
  for (Matrix& matrix : matrices_) {
    matrix.own_blocks = own_blocks_;
    own_blocks_ += matrix.blocks;
  }
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
      args.running =
          reinterpret_cast<float*>(places_.state.At(plan_.Entry(spec.name + what).offset));
      args.count = spec.channels;
      args.momentum = spec.momentum;
      args.batches = static_cast<double>(plan_.spec().shards) * plan_.spec().accumulate;
      args.now = now_;
      statistics_.push_back(args);
    }
    batches_tracked_.push_back(host_.At<int64_t>(plan_.Entry(spec.name + ".num_batches_tracked")));
  }
}

absl::Status CudaUpdater::MakeDecision() {
  const size_t bytes = sizeof(Told) + static_cast<size_t>(block_count_) * sizeof(double);
  LS_ASSIGN_OR_RETURN(std::byte * now, device_.Allocate(sizeof(*now_), "the update's numbers"));
  LS_ASSIGN_OR_RETURN(std::byte * next,
                      device_.AllocatePinned(sizeof(*next_), "the update's numbers"));
  LS_ASSIGN_OR_RETURN(std::byte * told, device_.AllocatePinned(bytes, "the gradients' sums"));
  now_ = reinterpret_cast<cuda::UpdateNow*>(now);
  next_ = new (next) cuda::UpdateNow;
  told_ = new (told) Told;
  LS_ASSIGN_OR_RETURN(decided_, device_.MakeEvent());
  LS_ASSIGN_OR_RETURN(heard_, device_.MakeEvent());
  return absl::OkStatus();
}

absl::Status CudaUpdater::LaunchSquares(const UpdateBlock* blocks, int64_t count) {
  cuda::SquaresArgs squares;
  squares.tensors = device_tensors_;
  squares.blocks = blocks;
  squares.block_count = count;
  squares.gradients = places_.gradients;
  squares.sums = sums_;
  return device_.Check(device_.tables().kernels->squares(squares, device_.compute()),
                       "the gradients' sums");
}

absl::Status CudaUpdater::Decide(absl::Span<const double> sums) {
  const GradientLayout& layout = plan_.layout();
  const cuda::Stream stream = device_.compute();
  LS_RETURN_IF_ERROR(device_.Copy(now_, next_, sizeof(*now_), stream));
  if (sums.empty()) {
    LS_RETURN_IF_ERROR(LaunchSquares(all_blocks_, block_count_));
  } else {
    LS_CHECK_EQ(sums.size(), static_cast<size_t>(block_count_));
    std::copy(sums.begin(), sums.end(), told_->sums);
    LS_RETURN_IF_ERROR(device_.Copy(sums_, told_->sums, sums.size() * sizeof(double), stream));
  }
  cuda::DecideArgs decide;
  decide.sums = sums_;
  decide.parameter_blocks = parameter_blocks_;
  decide.block_count = block_count_;
  decide.loss = places_.gradients + layout.loss;
  decide.targets = places_.gradients + layout.target_count;
  decide.radix = kCountRadix;
  decide.nominal_targets = static_cast<double>(plan_.nominal_targets());
  decide.clip_norm = plan_.spec().clip_norm;
  decide.now = now_;
  return device_.Check(device_.tables().kernels->decide(decide, stream), "the gradients' sums");
}

absl::Status CudaUpdater::Tell() {
  const GradientLayout& layout = plan_.layout();
  const cuda::Stream back = device_.returns();
  const cuda::Runtime& runtime = device_.runtime();
  cuda::Code code = runtime.record_event(decided_, device_.compute());
  if (code == 0) code = runtime.stream_waits(back, decided_);
  LS_RETURN_IF_ERROR(device_.Check(code, "the gradients' sums"));
  LS_RETURN_IF_ERROR(device_.Copy(&told_->now, now_, sizeof(*now_), back));
  LS_RETURN_IF_ERROR(device_.Copy(told_->tail, places_.gradients + layout.count - kGradientTail,
                                  kGradientTail * sizeof(float), back));
  LS_RETURN_IF_ERROR(
      device_.Copy(told_->sums, sums_, static_cast<size_t>(block_count_) * sizeof(double), back));
  return device_.Check(runtime.record_event(heard_, back), "the gradients' sums");
}

absl::Status CudaUpdater::Listen() {
  return device_.Check(device_.runtime().wait_event(heard_), "the gradients' sums");
}

StepResult CudaUpdater::Examine() const {
  const GradientLayout& layout = plan_.layout();
  const auto tail = [&](int64_t at) { return told_->tail[at - (layout.count - kGradientTail)]; };
  StepResult result;
  const float loss = tail(layout.loss);
  const SplitCount split{tail(layout.target_count), tail(layout.target_count + 1)};
  const bool counted = std::isfinite(split.high) && std::isfinite(split.low);
  double squares = 0;
  for (int64_t i = 0; i < parameter_blocks_; ++i) squares += told_->sums[i];
  result.finite = std::isfinite(squares) && std::isfinite(loss) && counted;
  for (int64_t i = parameter_blocks_; i < block_count_; ++i) {
    result.finite = result.finite && std::isfinite(told_->sums[i]);
  }
  if (counted) result.valid_targets = Join(split);
  const double n = static_cast<double>(result.valid_targets);
  // The mean of nothing is no number.
  result.loss = n > 0 ? static_cast<double>(loss) / n : std::numeric_limits<double>::quiet_NaN();
  if (n > 0 && plan_.spec().clip_norm > 0) {
    result.gradient_norm =
        std::sqrt(squares) * static_cast<double>(plan_.nominal_targets()) / (n * *loss_scale_);
  }
  result.skipped = !result.finite || n == 0;
  if (result.finite) return result;
  result.nonfinite = std::isfinite(loss) && counted ? StepResult::kStatistics : StepResult::kLoss;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const double* sums = told_->sums + tensors_[i].first_block;
    if (std::all_of(sums, sums + tensors_[i].blocks, [](double x) { return std::isfinite(x); })) {
      continue;
    }
    result.nonfinite = plan_.model().parameters()[i].name;
    break;
  }
  return result;
}

absl::Status CudaUpdater::UpdateStatistics() const {
  for (const cuda::StatisticArgs& args : statistics_) {
    LS_RETURN_IF_ERROR(device_.Check(device_.tables().kernels->statistic(args, device_.compute()),
                                     "running statistics"));
  }
  return absl::OkStatus();
}

void CudaUpdater::Count(const StepResult& result) {
  // A step without any target says nothing about the scale.
  if (plan_.scales_loss() && (!result.finite || result.valid_targets > 0)) {
    UpdateLossScale(plan_.spec().loss_scale, !result.finite, loss_scale_, growth_count_);
  }
  *skip_count_ = result.finite ? 0 : *skip_count_ + 1;
  if (result.skipped) return;
  ++*update_count_;
  for (int64_t* count : batches_tracked_) ++*count;
}

absl::StatusOr<StepResult> CudaUpdater::Advance(bool beside, absl::Span<const double> sums) {
  const double schedule = ScheduleFactor(plan_.spec().schedule, *update_count_);
  SetNow(schedule);
  LS_RETURN_IF_ERROR(Decide(sums));
  LS_RETURN_IF_ERROR(Tell());
  clock_.Pass(StepClock::kMeasured);
  clock_.Pass(StepClock::kUpdateBegin);
  LS_RETURN_IF_ERROR(Launch(beside));
  clock_.Pass(StepClock::kUpdateEnd);
  return Conclude(schedule);
}

absl::StatusOr<StepResult> CudaUpdater::Conclude(double schedule) {
  LS_RETURN_IF_ERROR(Listen());
  StepResult result = Examine();
  if (result.skipped != (told_->now.skips != 0)) {
    return absl::InternalError("GPU and host do not agree on whether the step counts");
  }
  result.loss_scale = *loss_scale_;
  result.learning_rate = plan_.optimizer().learning_rate() * schedule;
  Count(result);
  result.skipped_in_a_row = *skip_count_;
  return result;
}

absl::StatusOr<StepResult> CudaUpdater::Update(int64_t step) {
  LS_CHECK_EQ(step, begun_step() + 1) << "the state is not that before this step";
  const StateRegion::Writing writing(&host_);
  absl::StatusOr<StepResult> result = Advance(false);
  if (result.ok()) *step_ = step;
  return result;
}

absl::StatusOr<StepResult> CudaUpdater::UpdateAfter(int64_t step, int variant,
                                                    const Programs& programs,
                                                    const Programs& meanwhile) {
  LS_CHECK_EQ(step, begun_step() + 1) << "the state is not that before this step";
  LS_CHECK(!plan_.spec().offload_moments);
  const StateRegion::Writing writing(&host_);
  const double schedule = ScheduleFactor(plan_.spec().schedule, *update_count_);
  SetNow(schedule);
  LS_RETURN_IF_ERROR(Replay(&whole_[variant], [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(programs());
    LS_RETURN_IF_ERROR(Decide({}));
    return LaunchAll(false);
  }));
  // Nothing tells its parts apart: all of it is the programs' time.
  for (const auto mark : {StepClock::kProgramsEnd, StepClock::kMeasured, StepClock::kUpdateBegin,
                          StepClock::kUpdateEnd}) {
    clock_.Pass(mark);
  }
  LS_RETURN_IF_ERROR(Tell());
  LS_RETURN_IF_ERROR(meanwhile());
  absl::StatusOr<StepResult> result = Conclude(schedule);
  if (result.ok()) *step_ = step;
  return result;
}

// ---- in two halves ----

absl::Status CudaUpdater::HoldMoments(std::vector<HeldRange> held) {
  LS_CHECK(plan_.spec().shard_moments && !begun_);
  held_ = std::move(held);
  return Hold(CudaMoments::In(plan_, held_));
}

absl::Status CudaUpdater::HoldSums(std::vector<int> blocks) {
  LS_CHECK(plan_.spec().shard_moments && !begun_);
  own_sums_ = std::move(blocks);
  std::vector<UpdateBlock> own;
  for (const int block : own_sums_) own.push_back(blocks_[static_cast<size_t>(block)]);
  LS_RETURN_IF_ERROR(
      device_.Copy(summed_, own.data(), own.size() * sizeof(own[0]), device_.compute()));
  return device_.Wait(device_.compute());
}

absl::Status CudaUpdater::SumSquares(absl::Span<double> sums) {
  LS_CHECK_EQ(sums.size(), static_cast<size_t>(block_count_));
  if (own_sums_.empty()) return device_.Wait(device_.compute());
  LS_RETURN_IF_ERROR(LaunchSquares(summed_, static_cast<int64_t>(own_sums_.size())));
  LS_RETURN_IF_ERROR(
      device_.Copy(told_->sums, sums_, own_sums_.size() * sizeof(double), device_.compute()));
  LS_RETURN_IF_ERROR(device_.Wait(device_.compute()));
  for (size_t i = 0; i < own_sums_.size(); ++i) {
    sums[static_cast<size_t>(own_sums_[i])] = told_->sums[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> CudaUpdater::BeginUpdate(int64_t step, absl::Span<const double> sums) {
  LS_CHECK_EQ(step, begun_step() + 1) << "the moments are not those before this step";
  const StateRegion::Writing writing(&host_);
  LS_ASSIGN_OR_RETURN(const StepResult result, Advance(true, sums));
  if (result.skipped) {
    *step_ = step;
    return result;
  }
  for (const HeldRange& held : held_) {
    LS_RETURN_IF_ERROR(device_.Copy(held.weights, places_.gradients + held.begin,
                                    static_cast<size_t>(held.end - held.begin) * sizeof(float),
                                    device_.compute()));
  }
  LS_RETURN_IF_ERROR(device_.Wait(device_.compute()));
  begun_ = true;
  return result;
}

absl::Status CudaUpdater::FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights) {
  LS_CHECK(begun_ && step == *step_ + 1) << step;
  const StateRegion::Writing writing(&host_);
  for (const GradientSlice& slice : weights) {
    LS_RETURN_IF_ERROR(device_.Copy(places_.gradients + slice.begin, slice.data,
                                    static_cast<size_t>(slice.end - slice.begin) * sizeof(float),
                                    device_.compute()));
  }
  cuda::UpdateArgs args;
  args.rule = cuda::Rule::kTake;
  args.tensors = device_tensors_;
  args.blocks = all_blocks_;
  args.block_count = parameter_blocks_;
  args.gradients = places_.gradients;
  args.now = now_;  // still that of the first half
  if (plan_.spec().ema_decay > 0) args.ema_rate = 1 - plan_.spec().ema_decay;
  LS_RETURN_IF_ERROR(
      device_.Check(device_.tables().kernels->update(args, device_.compute()), "the new weights"));
  // Peers write over theirs when all have taken them.
  LS_RETURN_IF_ERROR(device_.Wait(device_.compute()));
  begun_ = false;
  *step_ = step;
  return absl::OkStatus();
}

}  // namespace lockstep::engine
