// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/compare.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/status.h"
#include "worker/commands/answers.h"
#include "worker/commands/saved_model.h"
#include "worker/setup/compiled_job.h"

namespace lockstep::worker {
namespace {

constexpr double kDefaultTolerance = 1e-4;

using Origin = std::pair<int, int>;

std::vector<double> ValuesOf(const engine::TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (view.is_float64) {
      values[i] = static_cast<const double*>(view.data)[i];
    } else if (view.type == FieldSpec::Type::kInt32) {
      values[i] = static_cast<const int32_t*>(view.data)[i];
    } else {
      values[i] = static_cast<const float*>(view.data)[i];
    }
  }
  return values;
}

// How an output of a node is stored: its type, and the format of what is rounded to FP8.
std::string StoredAs(const engine::NodeInfo& info, size_t output) {
  const std::string& shape = info.shapes[output];
  return absl::StrCat(shape.substr(0, shape.find('[')), " ", info.format);
}

struct Kept {
  int node = 0;
  std::string stored;
  std::vector<float> values;  // fp64 sums lose digits here, as what they are compared with does
};

// Keeps every value of a training program by its origin and by how it is stored: a value and its
// roundings have one origin.
class Keeper : public engine::NodeObserver {
 public:
  explicit Keeper(const engine::Plan& plan) : nodes_(plan.Nodes(engine::ProgramKind::kTraining)) {}
  void BeforeNode(engine::ProgramKind, int) override {}
  absl::Status AfterNode(engine::ProgramKind, int node,
                         absl::Span<const engine::TensorView> outputs) override {
    const engine::NodeInfo& info = nodes_[static_cast<size_t>(node)];
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (Find(info.origins[o], StoredAs(info, o)) != nullptr) continue;  // made again
      const std::vector<double> values = ValuesOf(outputs[o]);
      kept_[info.origins[o]].push_back({node, StoredAs(info, o), {values.begin(), values.end()}});
    }
    return absl::OkStatus();
  }
  size_t origins() const { return kept_.size(); }
  // What is kept of an origin, or null: what is stored so, or the first, which is not rounded if
  // anything of it is.
  const Kept* FindOrFirst(const Origin& origin, const std::string& stored) const {
    if (const Kept* const same = Find(origin, stored)) return same;
    const auto it = kept_.find(origin);
    return it == kept_.end() ? nullptr : &it->second.front();
  }
  const std::vector<engine::NodeInfo>& nodes() const { return nodes_; }

 private:
  const Kept* Find(const Origin& origin, const std::string& stored) const {
    const auto it = kept_.find(origin);
    if (it == kept_.end()) return nullptr;
    for (const Kept& kept : it->second) {
      if (kept.stored == stored) return &kept;
    }
    return nullptr;
  }

  const std::vector<engine::NodeInfo> nodes_;
  std::map<Origin, std::vector<Kept>> kept_;  // none of them empty
};

std::string NodeName(const engine::NodeInfo& info) {
  return info.name.empty() ? info.op : info.name;
}

// Compares every value of a training program with those that a Keeper has.
class Checker : public engine::NodeObserver {
 public:
  Checker(const engine::Plan& plan, const Keeper& a, double tolerance)
      : nodes_(plan.Nodes(engine::ProgramKind::kTraining)), a_(a), tolerance_(tolerance) {}
  void BeforeNode(engine::ProgramKind, int) override {}
  absl::Status AfterNode(engine::ProgramKind, int node,
                         absl::Span<const engine::TensorView> outputs) override {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const engine::NodeInfo& info = nodes_[static_cast<size_t>(node)];
      const Origin& origin = info.origins[o];
      const Kept* const kept = a_.FindOrFirst(origin, StoredAs(info, o));
      if (kept == nullptr || static_cast<int64_t>(kept->values.size()) != outputs[o].elements()) {
        only_b_.insert(origin);
        continue;
      }
      ++result_.matched;
      both_.insert(origin);
      Check(node, *kept, ValuesOf(outputs[o]));
    }
    return absl::OkStatus();
  }
  Comparison result() {
    result_.only_one = static_cast<int64_t>(a_.origins() - both_.size() + only_b_.size());
    return result_;
  }

 private:
  void Check(int node, const Kept& kept, const std::vector<double>& b) {
    Difference found;
    found.elements = static_cast<int64_t>(b.size());
    for (const float value : kept.values) {
      if (std::isfinite(value)) found.largest = std::max(found.largest, std::fabs(double{value}));
    }
    const double allowed = tolerance_ * found.largest;
    double worst = -1;
    for (size_t i = 0; i < b.size(); ++i) {
      const double x = kept.values[i], y = static_cast<float>(b[i]);
      const bool both_same = x == y || (std::isnan(x) && std::isnan(y));
      double distance = both_same ? 0 : std::fabs(x - y);
      if (!both_same && !std::isfinite(distance)) distance = HUGE_VAL;
      if (distance > allowed) ++found.over;
      if (distance <= worst) continue;
      worst = distance;
      found.element = static_cast<int64_t>(i);
      found.a = x;
      found.b = y;
    }
    if (found.largest > 0) result_.worst = std::max(result_.worst, worst / found.largest);
    if (found.over == 0 || result_.first.found) return;
    const engine::NodeInfo& a_info = a_.nodes()[static_cast<size_t>(kept.node)];
    const engine::NodeInfo& b_info = nodes_[static_cast<size_t>(node)];
    found.found = true;
    found.a_id = a_info.id;
    found.b_id = b_info.id;
    found.a_node = a_info.text;
    found.b_node = b_info.text;
    found.name = NodeName(b_info);
    result_.first = found;
  }

  const std::vector<engine::NodeInfo> nodes_;
  const Keeper& a_;
  std::set<Origin> both_, only_b_;  // a value and its roundings have one origin
  const double tolerance_;
  Comparison result_;
};

// A plan with memory and the state of step 0.
struct Variant {
  std::shared_ptr<const engine::Plan> plan;
  AlignedMemory state{nullptr, std::free}, arena{nullptr, std::free}, gradients{nullptr, std::free};
  std::unique_ptr<engine::Executor> executor;
};

absl::StatusOr<Variant> Prepare(engine::TrainSpec spec) {
  spec.passes.keep_dropout = false;  // bits of which a part is left alone are no values to compare
  Variant variant;
  LS_ASSIGN_OR_RETURN(variant.plan, engine::Plan::Compile(spec));
  variant.state = AllocateAligned(variant.plan->state_bytes());
  variant.arena = AllocateAligned(variant.plan->arena_bytes());
  variant.gradients =
      AllocateAligned(static_cast<size_t>(variant.plan->gradient_count()) * sizeof(float));
  if (variant.state == nullptr || variant.arena == nullptr || variant.gradients == nullptr) {
    return absl::ResourceExhaustedError("no memory for a variant of the plan");
  }
  LS_ASSIGN_OR_RETURN(
      variant.executor,
      engine::Executor::Create(variant.plan, {variant.state.get(), variant.arena.get()}));
  variant.executor->InitState();
  return variant;
}

absl::Status RunObserved(Variant* variant, engine::NodeObserver* observer, int64_t step, int shard,
                         engine::Fields fields) {
  variant->executor->Observe(observer);
  return variant->executor->RunShard(step, shard, 0, fields,
                                     static_cast<float*>(variant->gradients.get()), {});
}

std::string ComparisonText(const CompareRequest& request, const Comparison& result) {
  std::string text = absl::StrFormat(
      "%d values compared, %d in one variant alone; the largest difference is %.3g of its "
      "tensor's largest value\n",
      result.matched, result.only_one, result.worst);
  const Difference& first = result.first;
  if (!first.found) return absl::StrCat(text, "no node differs beyond the tolerance\n");
  absl::StrAppend(&text, "the first node that differs is ", first.name, ":\n");
  absl::StrAppend(&text, "  ", request.a(), " %", first.a_id, " ", first.a_node, "\n");
  absl::StrAppend(&text, "  ", request.b(), " %", first.b_id, " ", first.b_node, "\n");
  absl::StrAppendFormat(&text,
                        "  element %d: %.9g and %.9g; %d of %d elements are beyond the tolerance\n",
                        first.element, first.a, first.b, first.over, first.elements);
  return text;
}

std::string ComparisonJson(const CompareRequest& request, const Comparison& result) {
  const Difference& first = result.first;
  JsonObject object;
  object.Add("schema", 1).Add("ok", true).Add("a", request.a()).Add("b", request.b());
  object.Add("matched", result.matched).Add("only_one", result.only_one);
  object.Add("worst", result.worst).Add("differs", first.found);
  if (first.found) {
    object.Raw("first", JsonObject()
                            .Add("name", first.name)
                            .Add("a_node", first.a_node)
                            .Add("b_node", first.b_node)
                            .Add("element", first.element)
                            .Add("a_value", first.a)
                            .Add("b_value", first.b)
                            .Add("over", first.over)
                            .Add("elements", first.elements)
                            .Done());
  }
  return object.Done() + "\n";
}

// Switches off the pattern of `word` = "without_NAME"; false if there is none of that name.
bool SwitchOff(const std::string& word, engine::FusionPatterns* patterns) {
  for (const engine::FusionPattern& pattern : engine::kFusionPatterns) {
    if (word != absl::StrCat("without_", pattern.name)) continue;
    patterns->*pattern.on = false;
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<engine::TrainSpec> VariantOf(const engine::TrainSpec& spec,
                                            const std::string& name) {
  engine::TrainSpec variant = spec;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(name, '+'))) {
    if (word == "fused" || word == "unfused") {
      variant.passes.fuse = word == "fused";
    } else if (word == "planned" || word == "unplanned") {
      variant.passes.reuse_memory = variant.passes.in_place = word == "planned";
    } else if (word == "portable" || word == "avx2" || word == "avx512" || word == "avx512_bf16") {
      variant.passes.isa = word;
    } else if (word == "pairs" || word == "no_pairs") {
      variant.passes.bf16_pairs = word == "pairs";
    } else if (word == "cpu" || word == "cuda") {
      variant.device = word == "cpu" ? engine::DeviceKind::kCpu : engine::DeviceKind::kCuda;
    } else if (engine::KnowsPrecision(word)) {
      variant.precision = word;
      variant.fp8 = false;
    } else if (word == "fp8") {
      variant.fp8 = true;
    } else if (word == "kept" || word == "selective" || word == "blocks") {
      using Mode = engine::RecomputeSpec::Mode;
      variant.recompute.mode = word == "kept"        ? Mode::kNone
                               : word == "selective" ? Mode::kSelective
                                                     : Mode::kBlocks;
    } else if (!SwitchOff(word, &variant.passes.patterns)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", word,
          "' is no variant; there are fused, unfused, without_relu (and so on: each fuse_ key of "
          "passes), planned, unplanned, portable, avx2, "
          "avx512, avx512_bf16, pairs, no_pairs, cpu, cuda, fp32, bf16, fp8 (after bf16), fp16, "
          "pure_bf16, pure_fp16, kept, selective, "
          "blocks, and several of them joined by '+'"));
    }
  }
  return variant;
}

absl::StatusOr<Comparison> Compare(const engine::TrainSpec& a, const engine::TrainSpec& b,
                                   int64_t step, int shard, engine::Fields fields,
                                   double tolerance) {
  // In-place operations would write over what is compared only after it was seen: both run freely.
  LS_ASSIGN_OR_RETURN(Variant first, Prepare(a));
  LS_ASSIGN_OR_RETURN(Variant second, Prepare(b));
  Keeper keeper(*first.plan);
  LS_RETURN_IF_ERROR(RunObserved(&first, &keeper, step, shard, fields));
  Checker checker(*second.plan, keeper, tolerance);
  LS_RETURN_IF_ERROR(RunObserved(&second, &checker, step, shard, fields));
  return checker.result();
}

absl::Status AnswerCompare(const CompareRequest& request, bool json, bool* differs) {
  const JobSpec& job = request.spec();
  LS_ASSIGN_OR_RETURN(const JobData data, OpenJobData(job));
  LS_ASSIGN_OR_RETURN(const CompiledJob compiled, CompileJob(job, data));
  const auto a = VariantOf(compiled.plan->spec(), request.a());
  const auto b = VariantOf(compiled.plan->spec(), request.b());
  for (const auto* variant : {&a, &b}) {
    if (!variant->ok()) return OfCommandLine(variant->status());
  }
  const int64_t step = request.step() > 0 ? request.step() : 1;
  if (step > compiled.total_steps || request.shard() < 0 ||
      request.shard() >= job.train().shards()) {
    return OfCommandLine(
        absl::InvalidArgumentError(absl::StrCat("the job has steps 1 to ", compiled.total_steps,
                                                " and shards 0 to ", job.train().shards() - 1)));
  }
  std::vector<int64_t> indices(static_cast<size_t>(compiled.sampler->samples_per_shard()));
  compiled.sampler->Indices(step - 1, request.shard(), absl::MakeSpan(indices));
  std::vector<AlignedMemory> memory;
  std::vector<void*> fields;
  for (const FieldSpec& field : data.train->fields()) {
    memory.push_back(AllocateAligned(indices.size() * field.bytes()));
    if (memory.back() == nullptr) return absl::ResourceExhaustedError("no memory for a batch");
    fields.push_back(memory.back().get());
  }
  LS_RETURN_IF_ERROR(data.train->ReadBatch({indices, step - 1, request.shard()}, fields));
  const std::vector<const void*> read_only(fields.begin(), fields.end());
  const double tolerance = request.has_tolerance() ? request.tolerance() : kDefaultTolerance;
  LS_ASSIGN_OR_RETURN(const Comparison result,
                      Compare(*a, *b, step, request.shard(), read_only, tolerance));
  *differs = result.first.found;
  const std::string text = json ? ComparisonJson(request, result) : ComparisonText(request, result);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace lockstep::worker
