// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/warpgroup_check.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/half.h"
#include "common/log.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/cuda/attention_cudnn.h"
#include "engine/cuda/attention_engine.h"
#include "engine/cuda/module.h"
#include "engine/cuda/tuning.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

// Blocks of 128 queries and stages of 128 keys are more than one, and the last tile is no whole
// one.
struct Form {
  int64_t heads;
  int64_t depth;
  int64_t length;
  bool causal;
  bool drops;

  int64_t width() const { return heads * depth; }
  int64_t padded() const { return PaddedAttentionLength(length); }
};
constexpr Form kForms[] = {{1, 64, 136, true, false}, {2, 40, 136, false, true}};

// Numbers of a form's arrays. Queries, keys and values lie side by side, as their gradients do.
struct Counts {
  explicit Counts(const Form& f)
      : values(static_cast<size_t>(f.length * f.width())),
        rows(static_cast<size_t>(f.heads * f.length)),
        padded_rows(static_cast<size_t>(f.heads * f.padded())),
        kept(padded_rows * static_cast<size_t>(f.padded()) / 16) {}
  size_t values;
  size_t rows;
  size_t padded_rows;
  size_t kept;
};

// Arrays in the memory, one behind another.
class Places {
 public:
  explicit Places(void* memory) : next_(static_cast<std::byte*>(memory)) {}
  void* Take(size_t bytes) {
    void* const place = next_;
    left_ -= AlignedBytes(bytes);
    LS_CHECK_GE(left_, 0);
    next_ += AlignedBytes(bytes);
    return place;
  }

 private:
  std::byte* next_;
  int64_t left_ = kCudaWorkspaceBytes;
};

// What one kind of kernels makes.
struct Results {
  Results(Places* places, const Counts& counts)
      : y(places->Take(counts.values * 2)),
        log_sums(places->Take(counts.rows * 4)),
        gradients(places->Take(3 * counts.values * 2)) {}
  void* y;
  void* log_sums;
  void* gradients;
};

float Widen(Type type, uint16_t bits) {
  return type == Type::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}

// In [-1, 1).
std::vector<uint16_t> MadeValues(Type type, size_t count, uint64_t seed) {
  std::vector<uint16_t> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const float x = UniformFloat(static_cast<uint32_t>(MixBits((seed << 32) + i))) * 2 - 1;
    values.push_back(type == Type::kBF16 ? BFloat16::FromFloat(x).bits
                                         : Float16::FromFloat(x).bits);
  }
  return values;
}

// One form by both kinds of kernels.
class Comparison {
 public:
  Comparison(Device* device, Type type, const Form& form, void* memory, absl::Duration patience)
      : device_(*device),
        patience_(patience),
        type_(type),
        form_(form),
        counts_(form),
        places_(memory),
        expected_(&places_, counts_),
        made_(&places_, counts_) {
    AttentionArgs& f = args_.forward;
    f.batch = 1;
    f.heads = form.heads;
    f.length = f.queries = form.length;
    f.depth = form.depth;
    f.width = form.width();
    f.stride = 3 * f.width;
    f.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(form.depth)));
    f.causal = form.causal;
  }

  // Whether the kernel that was launched last was one by wgmma.
  bool by_wgmma() const { return by_wgmma_; }

  // Errors: Internal; DeadlineExceeded when a kernel does not end.
  absl::Status Run() {
    LS_ASSIGN_OR_RETURN(done_, device_.MakeEvent());
    LS_RETURN_IF_ERROR(Upload());
    LS_RETURN_IF_ERROR(Forward(false, expected_));
    LS_RETURN_IF_ERROR(Forward(true, made_));
    LS_RETURN_IF_ERROR(Compare("the results", expected_.y, made_.y, counts_.values));
    LS_RETURN_IF_ERROR(CompareLogSums());
    // Of the same results, so that differences are the gradients' own.
    args_.forward.y = {expected_.y, type_};
    args_.forward.log_sums = {expected_.log_sums, Type::kF32};
    LS_RETURN_IF_ERROR(Backward(false, expected_));
    LS_RETURN_IF_ERROR(Backward(true, made_));
    return Compare("the gradients", expected_.gradients, made_.gradients, 3 * counts_.values);
  }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes) {
    return device_.Copy(to, from, bytes, device_.compute());
  }

  absl::Status Upload() {
    AttentionArgs& f = args_.forward;
    const std::vector<uint16_t> qkv = MadeValues(type_, 3 * counts_.values, 1);
    const std::vector<uint16_t> dy = MadeValues(type_, counts_.values, 2);
    void* const at = places_.Take(qkv.size() * 2);
    const auto part = [&](int64_t i) {
      return View{static_cast<uint16_t*>(at) + i * f.width, type_};
    };
    f.q = part(0);
    f.k = part(1);
    f.v = part(2);
    args_.dy = {places_.Take(dy.size() * 2), type_};
    args_.delta = static_cast<float*>(places_.Take(counts_.rows * sizeof(float)));
    args_.rows = static_cast<float*>(places_.Take(2 * counts_.padded_rows * sizeof(float)));
    args_.kept = static_cast<uint16_t*>(places_.Take(counts_.kept * sizeof(uint16_t)));
    const int32_t address[] = {3, 1, 2, 0};
    void* const address_at = places_.Take(sizeof(address));
    if (form_.drops) {
      f.drop = {12345, 0x2000, 8.0f / 7, static_cast<const int32_t*>(address_at)};  // an eighth
      f.round_keys = RoundKeys(f.drop.key);
    }
    LS_RETURN_IF_ERROR(Copy(at, qkv.data(), qkv.size() * 2));
    LS_RETURN_IF_ERROR(Copy(args_.dy.data, dy.data(), dy.size() * 2));
    LS_RETURN_IF_ERROR(Copy(address_at, address, sizeof(address)));
    // What is not written is no number.
    const std::vector<uint16_t> nothing(3 * counts_.values, 0xffff);
    for (const Results& results : {expected_, made_}) {
      LS_RETURN_IF_ERROR(Copy(results.y, nothing.data(), counts_.values * 2));
      LS_RETURN_IF_ERROR(Copy(results.log_sums, nothing.data(), counts_.rows * 4));
      LS_RETURN_IF_ERROR(Copy(results.gradients, nothing.data(), nothing.size() * 2));
    }
    return device_.Wait(device_.compute());
  }

  absl::Status Done(bool warpgroups, const char* what, Code code) {
    by_wgmma_ = warpgroups;
    const std::string text = absl::StrCat(what, " by ", warpgroups ? "wgmma" : "mma.sync");
    LS_RETURN_IF_ERROR(device_.Check(code, text));
    LS_RETURN_IF_ERROR(
        device_.Check(device_.runtime().record_event(done_, device_.compute()), text));
    const absl::Time end = Clock::Real()->Now() + patience_;
    const absl::Status status =
        device_.WaitFor(done_, [end] { return Clock::Real()->Now() >= end; });
    if (!absl::IsAborted(status)) return Annotate(status, text);
    return absl::DeadlineExceededError(
        absl::StrCat(text, " does not end within ", absl::FormatDuration(patience_)));
  }

  absl::Status Forward(bool warpgroups, const Results& results) {
    AttentionArgs own = args_.forward;
    own.warpgroups = warpgroups;
    own.y = {results.y, type_};
    own.log_sums = {results.log_sums, Type::kF32};
    return Done(warpgroups, "attention",
                device_.tables().kernels->attention(own, device_.compute()));
  }

  absl::Status Backward(bool warpgroups, const Results& results) {
    AttentionBackwardArgs own = args_;
    own.forward.warpgroups = warpgroups;
    const auto part = [&](int64_t i) {
      return View{static_cast<uint16_t*>(results.gradients) + i * own.forward.width, type_};
    };
    own.dq = part(0);
    own.dk = part(1);
    own.dv = part(2);
    return Done(warpgroups, "attention's gradient",
                device_.tables().kernels->attention_backward(own, device_.compute()));
  }

  template <typename T>
  absl::Status Bring(const void* from, std::vector<T>* to) {
    LS_RETURN_IF_ERROR(Copy(to->data(), from, to->size() * sizeof(T)));
    return device_.Wait(device_.compute());
  }

  // Row by row of a head.
  absl::Status Compare(const char* what, const void* expected, const void* made, size_t count) {
    std::vector<float> values[2];
    for (const void* from : {expected, made}) {
      std::vector<uint16_t> bits(count);
      LS_RETURN_IF_ERROR(Bring(from, &bits));
      std::vector<float>& own = values[from == made];
      own.reserve(count);
      for (const uint16_t one : bits) own.push_back(Widen(type_, one));
    }
    return Said(what, AttentionDisagreement(values[1], values[0], type_, form_.depth));
  }

  absl::Status CompareLogSums() {
    std::vector<float> expected(counts_.rows), made(counts_.rows);
    LS_RETURN_IF_ERROR(Bring(expected_.log_sums, &expected));
    LS_RETURN_IF_ERROR(Bring(made_.log_sums, &made));
    return Said("the logarithms of sums", LogSumDisagreement(made, expected));
  }

  absl::Status Said(const char* what, const std::string& disagreement) const {
    if (disagreement.empty()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "by wgmma ", what, " of attention with heads of ", form_.depth, " columns in ",
        NameOf(type_), form_.causal ? ", causal" : "", form_.drops ? ", with dropout" : "",
        ", differ from those by mma.sync: ", disagreement));
  }

  Device& device_;
  const absl::Duration patience_;
  const Type type_;
  const Form form_;
  const Counts counts_;
  Places places_;
  const Results expected_;  // by mma.sync
  const Results made_;      // by wgmma
  AttentionBackwardArgs args_;
  Event done_ = nullptr;  // behind the kernel that was launched last
  bool by_wgmma_ = false;
};

// What CheckWarpgroups has said in this process, by module, GPU and type.
struct Answers {
  absl::Mutex mu;
  std::map<std::tuple<const Tables*, std::string, Type>, bool> content ABSL_GUARDED_BY(mu);
};

absl::StatusOr<bool> AreTrusted(Device* device, Type type, void* memory) {
  static Answers* const answers = new Answers;  // lives for ever
  absl::MutexLock lock(&answers->mu);
  const std::tuple key(&device->tables(), device->properties().uuid, type);
  const auto found = answers->content.find(key);
  if (found != answers->content.end()) return found->second;
  const absl::Status status = CheckWarpgroups(device, type, memory);
  if (absl::IsFailedPrecondition(status)) return status;
  answers->content[key] = status.ok();
  if (!status.ok()) {
    LS_LOG_WARNING << "attention is done by mma.sync on " << device->properties().name << " ("
                   << device->properties().uuid
                   << "), since its kernels of sm_90a fail their check: " << status.message();
  }
  return status.ok();
}

}  // namespace

absl::Status CheckWarpgroups(Device* device, Type type, void* memory, absl::Duration patience) {
  LS_CHECK(type != Type::kF32);
  for (const Form& form : kForms) {
    Comparison comparison(device, type, form, memory, patience);
    absl::Status status = comparison.Run();
    if (status.ok()) continue;
    if (absl::IsDeadlineExceeded(status)) device->Abandon();
    // After a fault of a kernel, such as a wrong address, the GPU does nothing more in this
    // process, as behind one that does not end. One of the others, or of before, is not theirs.
    if (device->Wait(device->compute()).ok()) return status;
    if (!comparison.by_wgmma()) {
      return absl::FailedPreconditionError(
          absl::StrCat(status.message(), "; the GPU does nothing more in this process"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "the kernels of attention of sm_90a end all work on ", device->properties().name, " (",
        device->properties().uuid, "): ", status.message(),
        "; set LOCKSTEP_WARPGROUPS=0 for all workers of the job: attention is done by mma.sync "
        "then"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> UsesWarpgroups(const CompiledPlan& plan, Device* device, void* memory) {
  if (!HasWarpgroups(device->tables(), device->properties())) return false;
  for (const ProgramKind kind : {ProgramKind::kTraining, ProgramKind::kEvaluation}) {
    const Graph& graph = plan.program(kind).graph;
    for (const Node& node : graph.nodes()) {
      if (!SuitsWarpgroups(graph, node)) continue;
      return AreTrusted(device, FactorType(graph, node), memory);
    }
  }
  return false;
}

}  // namespace lockstep::engine::cuda
