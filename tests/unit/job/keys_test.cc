// SPDX-License-Identifier: Apache-2.0
// Every key of the job file takes effect or is refused: a walk over all fields of job.proto. For
// each one there has to be a value that is accepted and makes another job of a file, and a place
// that reads the field; or the key is refused as a later version's. A new field without either
// fails here.
#include <cctype>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/job_file.h"
#include "job/schema.h"

namespace lockstep::job {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;

using Sets = std::vector<std::string>;

constexpr char kJob[] = R"(name: job
resources: {nproc_per_node: 4}
train:
  model: {mlp: {hidden: [16]}}
  data: {synthetic: {}}
  global_batch: 64
  steps: 1000
  optimizer: {sgd: {lr: 0.1}}
)";

// Who reads the fields of a message, or one field of it. What reads all fields of a message through
// its descriptor is named with a star.
const std::map<std::string, std::string>& Readers() {
  static const auto* const readers = new std::map<std::string, std::string>{
      {"JobSpec.name", "coordinator/core/job_machine.cc"},
      {"JobSpec.resources", "worker/setup/job_plan.cc"},
      {"JobSpec.elastic", "job/meaning/workers.cc"},
      {"JobSpec.train", "worker/setup/job_plan.cc"},
      {"JobSpec.checkpoint", "worker/worker.cc"},
      {"JobSpec.restart", "job/meaning/defaults.cc"},
      {"JobSpec.priority", "coordinator/core/queue_view.cc"},
      {"JobSpec.env", "launcher/agent/worker_process.cc"},
      {"JobSpec.secrets", "launcher/agent/worker_process.cc"},
      {"JobSpec.workdir", "launcher/agent/run_folder.cc"},
      {"JobSpec.time_limit", "job/meaning/defaults.cc"},
      {"JobSpec.preemption", "launcher/agent/reconcile.cc"},
      {"JobSpec.logs", "launcher/verbs/submit.cc"},
      {"JobSpec.failure_detection", "job/meaning/defaults.cc"},
      {"JobSpec.start_timeout", "job/meaning/defaults.cc"},
      {"JobSpec.verify_replicas", "job/meaning/defaults.cc"},
      {"JobSpec.nccl", "worker/setup/data_plane.cc"},
      {"JobSpec.run", "worker/command/keeper.cc"},
      {"Run", "worker/command/keeper.cc"},
      {"JobSpec.profile", "worker/worker.cc"},
      {"JobSpec.debug", "worker/step/trainer_setup.cc"},
      {"Profile.steps", "worker/step/trainer_setup.cc"},
      {"Profile.sort", "worker/worker.cc"},
      {"Debug", "worker/step/trainer_setup.cc"},
      {"Resources.nodes", "coordinator/core/queue_view.cc"},
      {"Resources.nproc_per_node", "coordinator/core/queue_view.cc"},
      {"Resources.ranks_per_node", "job/meaning/workers.cc"},
      {"Resources.rank0_node", "coordinator/core/queue_view.cc"},
      {"Resources.nproc_by", "coordinator/core/queue_view.cc"},
      {"Resources.labels", "coordinator/core/queue_view.cc"},
      {"Resources.cpus_per_proc", "worker/setup/job_plan.cc"},
      {"Resources.device", "coordinator/core/queue_view.cc"},
      {"Resources.memory", "worker/setup/memory_need.cc"},
      {"Resources.gpu_memory", "worker/setup/memory_need.cc"},
      {"Resources.standby", "coordinator/core/standby.cc"},
      {"Resources.matmul", "worker/setup/tuning_files.cc"},
      {"Resources.offload_optimizer", "worker/setup/job_plan.cc"},
      {"Resources.bind_cpus", "worker/setup/cpu_binding.cc"},
      {"Resources.cudnn", "worker/setup/tuning_files.cc"},
      {"Elastic", "job/meaning/workers.cc"},
      {"Checkpoint.dir", "worker/worker.cc"},
      {"Checkpoint.every", "job/meaning/defaults.cc"},
      {"Checkpoint.keep", "worker/worker.cc"},
      {"Checkpoint.resume", "worker/worker.cc"},
      {"Checkpoint.shared", "worker/generation_start.cc"},
      {"Restart", "job/meaning/defaults.cc"},
      {"Preemption", "launcher/agent/reconcile.cc"},
      {"Logs", "launcher/verbs/submit.cc"},
      {"Train", "worker/setup/job_plan.cc"},
      {"Train.reproducible", "coordinator/core/generation.cc"},
      {"Train.on_nonfinite", "worker/step/trainer.cc"},
      {"Train.max_skips", "worker/step/trainer.cc"},
      {"Train.early_stop", "worker/step/trainer.cc"},
      {"Train.best", "worker/step/trainer_evals.cc"},
      {"Evaluation.every", "job/meaning/defaults.cc"},
      {"Evaluation.block", "worker/setup/job_plan.cc"},
      {"EarlyStop", "worker/step/eval_tracker.cc"},
      {"Best", "worker/step/trainer.cc"},
      {"Data.loader", "worker/step/trainer_setup.cc"},
      {"Loader", "worker/step/trainer_setup.cc"},
      {"DropoutLayer", "job/meaning/defaults.cc"},
      {"Nccl", "worker/setup/nccl_settings.cc *"},
      {"Nccl.use", "worker/setup/data_plane.cc"},
      {"Nccl.order", "worker/setup/data_plane.cc"},
      {"Nccl.symmetric_memory", "worker/setup/data_plane.cc"},
      {"Nccl.multi_rank_gpu", "worker/setup/nccl_settings.cc"},
      {"Nccl.env", "worker/setup/nccl_settings.cc"},
  };
  return *readers;
}

// The data sets, optimizers and schedules.
constexpr char kPlanReader[] = "worker/setup/job_plan.cc";
// The layers of a model.
constexpr char kLayerReader[] = "worker/setup/model_plan.cc";
// The models and their fields, read by these names: worker_model_plan_test sees that each gets
// there.
constexpr char kModelReader[] = "engine/model_spec.h";

// Who reads the field where Readers() names nobody.
const char* UsualReader(const std::string& message) {
  if (Model::descriptor()->name() == message) return kModelReader;
  for (int i = 0; i < Model::descriptor()->field_count(); ++i) {
    if (Model::descriptor()->field(i)->message_type()->name() == message) return kModelReader;
  }
  return absl::EndsWith(message, "Layer") ? kLayerReader : kPlanReader;
}

// Returns what has to stand beside a key so that it may be written; by the beginning of its path.
const std::map<std::string, Sets>& Beside() {
  static const auto* const beside = new std::map<std::string, Sets>{
      {"run", {"train=", "run=pwd"}},
      {"resources.ranks_per_node", {"resources={cpus_per_proc: 1}"}},
      {"resources.nproc_by", {"train.shards=4"}},
      {"elastic.max_workers", {"train.shards=8"}},
      {"train.model.layers", {"train.model={layers: {sequence: [linear]}}"}},
      {"train.data.fashion_mnist", {"train.data={fashion_mnist: {}}"}},
      {"train.data.idx",
       {"train.data={idx: {train_images: a, train_labels: b}}", "train.eval.every=never"}},
      {"train.data.text", {"train.data={text: {path: a}}"}},
      {"train.data.tokens", {"train.data={tokens: {train: a}}", "train.eval.every=never"}},
      {"train.data.cifar10", {"train.data={cifar10: {path: a}}"}},
      {"train.data.npy",
       {"train.data={npy: {train_inputs: a, train_labels: b}}", "train.eval.every=never"}},
      {"train.data.npy.padding", {"train.data.npy.vocab=16777216"}},
      {"train.data.csv", {"train.data={csv: {train: a}}", "train.eval.every=never"}},
      {"train.optimizer.sgd.nesterov", {"train.optimizer.sgd.momentum=0.9"}},
      {"train.optimizer.adam", {"train.optimizer={adam: {lr: 0.1}}"}},
      {"train.optimizer.adamw", {"train.optimizer={adamw: {lr: 0.1}}"}},
      {"train.optimizer.lamb", {"train.optimizer={lamb: {lr: 0.1}}"}},
      {"train.optimizer.muon", {"train.optimizer={muon: {lr: 0.1}}"}},
      {"train.schedule.constant", {"train.schedule={cosine: {}}"}},
      {"train.schedule.step.every", {"train.schedule={step: {every: 9}}"}},
      {"train.schedule.step.milestones", {"train.schedule={step: {milestones: [9]}}"}},
      {"train.schedule.step.gamma", {"train.schedule={step: {every: 9}}"}},
      {"train.schedule.exponential", {"train.schedule={exponential: {gamma: 0.9}}"}},
      {"train.schedule.wsd", {"train.schedule={wsd: {decay_steps: 9}}"}},
      {"train.fp8", {"train.precision=bf16"}},
      {"train.loss_scale", {"train.precision=fp16"}},
      {"train.ema", {"train.ema={decay: 0.9}"}},
      {"nccl.order", {"train.reproducible=false"}},
  };
  return *beside;
}

Sets BesideOf(const std::string& path) {
  Sets sets;
  for (const auto& [begin, more] : Beside()) {
    const bool whole = path == begin || absl::StartsWith(path, begin + ".");
    if (whole) sets.insert(sets.end(), more.begin(), more.end());
  }
  return sets;
}

// Values to try, until one is accepted and says something new.
std::vector<std::string> Values(const FieldDescriptor& field) {
  const FieldRule& rule = RuleOf(field);
  std::vector<std::string> values = rule.choices;
  if (field.is_map()) return {"x"};
  if (field.name() == "precision") return {"bf16"};
  if (field.full_name() == "lockstep.Run.command") return {"ls"};
  switch (rule.form) {
    case Form::kSize:
      return {"1GiB"};
    case Form::kEvery:
    case Form::kEveryEval:
      return {"7 steps"};
    case Form::kSteps:
      return {"\"2:3\""};
    case Form::kDevice:
      return {"cpu"};
    default:
      break;
  }
  if (IsDuration(field)) return {"7s"};
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      values = {"true", "false"};
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      if (values.empty()) values = {"other"};
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      values = {"0.25", "4"};
      break;
    default:
      values = {"2", "1", "5", "8", "34", "128"};
  }
  if (field.is_repeated()) {
    for (std::string& value : values) value = absl::StrCat("[", value, "]");
  }
  return values;
}

LoadResult Load(const Sets& sets) { return ParseJob(kJob, "job.yaml", sets); }

// A key, and how --set writes it.
struct Key {
  std::string path;
  Sets beside;
  // `value` empty: what --set says without this key; nothing when it can be left out altogether.
  std::function<std::string(const std::string& value)> set;
};

class Walk {
 public:
  void Run() {
    Fields(*JobSpec::descriptor(), "", [](const FieldDescriptor& field) {
      return Key{field.name(), BesideOf(field.name()), Setter(field.name())};
    });
  }
  int keys() const { return keys_; }

 private:
  using MakeKey = std::function<Key(const FieldDescriptor& field)>;

  static std::function<std::string(const std::string&)> Setter(const std::string& path) {
    return [path](const std::string& value) {
      return value.empty() ? "" : absl::StrCat(path, "=", value);
    };
  }

  void Fields(const Descriptor& type, const std::string& path, const MakeKey& make) {
    for (const std::string& name : FieldNames(type)) {
      const FieldDescriptor& field = *type.FindFieldByName(name);
      const Key key = make(field);
      SCOPED_TRACE(absl::StrCat(type.name(), ".", name, " at ", key.path));
      ++keys_;
      if (IsRefused(field)) {
        Refused(field, key);
        continue;
      }
      Read(field);
      Descend(field, key);
    }
  }

  static bool IsRefused(const FieldDescriptor& field) {
    return field.full_name() == "lockstep.JobSpec.queue";
  }

  static void Refused(const FieldDescriptor& field, const Key& key) {
    const LoadResult loaded = Load({key.set(Values(field).front())});
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.errors[0].message, HasSubstr("not in this version"));
    EXPECT_GT(loaded.errors[0].column, 0);
  }

  // Something reads it.
  static void Read(const FieldDescriptor& field) {
    const std::string message = field.containing_type()->name();
    const std::string name = absl::StrCat(message, ".", field.name());
    const auto row = Readers().count(name) ? Readers().find(name) : Readers().find(message);
    std::string reader = row == Readers().end() ? UsualReader(message) : row->second;
    const bool all = absl::EndsWith(reader, " *");
    if (all) reader.resize(reader.size() - 2);
    std::ifstream in(absl::StrCat(LOCKSTEP_SOURCE_DIR "/", reader));
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::string kind = "::k";  // of a oneof's case
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(field.name(), '_'))) {
      kind += static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
      kind += word.substr(1);
    }
    bool read = all && absl::StrContains(text, message + "::descriptor()");
    if (reader == kModelReader) {
      const bool model = message == Model::descriptor()->name();
      read = absl::StrContains(
          text, absl::StrCat(model ? "kName[] = \"" : "visit(\"", field.name(), "\""));
      EXPECT_TRUE(read) << reader << " has no " << message << "." << field.name();
      return;
    }
    for (const char* before : {".", "->", ".has_", ".mutable_"}) {
      read |= absl::StrContains(text, absl::StrCat(before, field.name(), "("));
    }
    if (field.real_containing_oneof() != nullptr) read |= absl::StrContains(text, kind);
    EXPECT_TRUE(read) << "nothing in " << reader
                      << " reads it: name who does in Readers(), or refuse the key (schema.cc)";
  }

  void Descend(const FieldDescriptor& field, const Key& key) {
    const Descriptor* type = field.message_type();
    if (type == nullptr || IsDuration(field) || field.is_map()) return TakesEffect(field, key);
    if (!visiting_.insert(type->name()).second) return TakesEffect(field, key, "[relu]");
    if (field.is_repeated()) {
      Fields(*type, key.path, [&](const FieldDescriptor& inner) { return Element(key, inner); });
    } else {
      if (type->field_count() == 0) TakesEffect(field, key, "{}");
      Fields(*type, key.path, [&](const FieldDescriptor& inner) { return Inner(key, inner); });
    }
    visiting_.erase(type->name());
  }

  // A key of the mapping `outer`: a path of its own, or, in a list, text within the list.
  static Key Inner(const Key& outer, const FieldDescriptor& field) {
    Key key;
    key.path = absl::StrCat(outer.path, ".", field.name());
    if (!absl::StrContains(outer.path, '[')) {
      key.beside = BesideOf(key.path);
      key.set = Setter(key.path);
      return key;
    }
    key.beside = outer.beside;
    const std::string message = field.containing_type()->name(), own_name = field.name();
    const std::string needed = message == "ConvLayer" && own_name != "channels"     ? "channels: 2"
                               : message == "PoolLayer" && own_name != "kernel"     ? "kernel: 2"
                               : message == "LinearLayer" && own_name != "features" ? "features: 2"
                                                                                    : "";
    key.set = [outer, needed, name = field.name()](const std::string& value) {
      const std::string own = value.empty() ? "" : absl::StrCat(name, ": ", value);
      const char* between = needed.empty() || own.empty() ? "" : ", ";
      return outer.set(absl::StrCat("{", needed, between, own, "}"));
    };
    return key;
  }

  // A key of the elements of a list of mappings.
  static Key Element(const Key& list, const FieldDescriptor& field) {
    const bool layer = field.containing_type()->name() == "Layer";
    const char* more = layer ? ", linear]" : "]";
    const std::string needed = layer || field.name() == "match" ? "" : "match: a";
    Key key;
    key.path = absl::StrCat(list.path, "[].", field.name());
    key.beside = list.beside;
    key.set = [list, needed, more, name = field.name()](const std::string& value) {
      const std::string own = value.empty() ? "" : absl::StrCat(name, ": ", value);
      const char* between = needed.empty() || own.empty() ? "" : ", ";
      const std::string element = absl::StrCat(needed, between, own);
      return list.set(element.empty() ? "[linear]" : absl::StrCat("[{", element, "}", more));
    };
    return key;
  }

  // Some value is accepted, and the job is another one with it.
  static void TakesEffect(const FieldDescriptor& field, const Key& key,
                          const std::string& only = "") {
    Sets without = key.beside;
    std::string set = key.path;
    if (field.is_map()) {
      set = absl::StrCat(key.path, field.name() == "env" && key.path != "env" ? ".NCCL_X" : ".X");
    } else if (const std::string rest = key.set(""); !rest.empty() && field.name() != "match") {
      without.push_back(rest);  // a list's element without this key
    }
    const LoadResult before = Load(without);
    std::string errors;
    for (const std::string& value : only.empty() ? Values(field) : Sets{only}) {
      Sets with = key.beside;
      with.push_back(field.is_map() ? absl::StrCat(set, "=", value) : key.set(value));
      const LoadResult after = Load(with);
      if (after.ok() &&
          !google::protobuf::util::MessageDifferencer::Equals(before.spec, after.spec)) {
        return;
      }
      absl::StrAppend(&errors, "--set '", with.back(), "'\n", after.FormatErrors());
    }
    ADD_FAILURE() << "no value is accepted and changes the job:\n" << errors;
  }

  int keys_ = 0;
  std::set<std::string> visiting_;
};

TEST(Keys, EveryOneTakesEffectOrIsRefused) {
  ASSERT_TRUE(Load({}).ok()) << Load({}).FormatErrors();
  Walk walk;
  walk.Run();
  EXPECT_GT(walk.keys(), 290);
}

TEST(Keys, ARefusedOneIsShownWhereItStands) {
  const LoadResult loaded = ParseJob(std::string(kJob) + "queue: night\n", "job.yaml", {});
  EXPECT_EQ(loaded.FormatErrors(),
            "job.yaml:9:8: error: 'queue' is 'night': queues of other names are not in this "
            "version; leave it out, or write default\n"
            "    9 | queue: night\n"
            "      |        ^~~~~\n");
  EXPECT_TRUE(ParseJob(std::string(kJob) + "queue: default\n", "job.yaml", {}).ok());
}

}  // namespace
}  // namespace lockstep::job
