// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/saved_model.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/storage.h"
#include "common/available_memory.h"
#include "common/half.h"
#include "common/log.h"
#include "common/round_up.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "worker/setup/compiled_job.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/model_plan.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;
constexpr uint64_t kMostConfigBytes = 16 << 20;

bool IsFolder(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<ModelConfig> ReadConfig(const std::string& path) {
  const absl::StatusOr<std::string> text =
      checkpoint::Storage::Disk()->Read(path, kMostConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        "no ", path, ": a saved model is a folder with model.safetensors and config.json"));
  }
  LS_RETURN_IF_ERROR(text.status());
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // of later versions
  ModelConfig config;
  const auto status = google::protobuf::util::JsonStringToMessage(*text, &config, options);
  if (!status.ok() || config.format() != "lockstep") {
    return absl::DataLossError(absl::StrCat(path, " is not the config of a saved model",
                                            status.ok() ? "" : ": ",
                                            std::string(status.message())));
  }
  if (config.schema() != 1 || config.fields().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has schema ", config.schema(), " and ", config.fields_size(),
                     " fields; this version reads schema 1 with fields"));
  }
  return config;
}

engine::InputSpec InputOf(const ModelConfig& config) {
  engine::InputSpec input;
  for (const ModelField& field : config.fields()) {
    input.fields.push_back(
        {field.name(),
         field.type() == "int32" ? FieldSpec::Type::kInt32 : FieldSpec::Type::kFloat32,
         {field.shape().begin(), field.shape().end()},
         field.limit()});
  }
  input.classes = config.classes();
  return input;
}

constexpr size_t kPiece = size_t{4} << 20;

// Weights that are stored in 16 bits are saved as fp32, which has them exactly.
void NarrowWeights(bool bfloat, const std::vector<float>& from, uint16_t* bits) {
  for (const float value : from) {
    *bits++ = bfloat ? BFloat16::FromFloat(value).bits : Float16::FromFloat(value).bits;
  }
}

// Reads a tensor to where `entry` lies. Errors: those of SafetensorsFile::Read.
absl::Status ReadWeights(const checkpoint::SafetensorsFile& file,
                         const checkpoint::TensorEntry& tensor, const engine::StateEntry& entry,
                         char* to) {
  using Type = engine::StateEntry::Type;
  const bool narrow = entry.type == Type::kBFloat16 || entry.type == Type::kFloat16;
  std::vector<float> wide(narrow ? std::min(kPiece, tensor.bytes()) / sizeof(float) : 0);
  for (uint64_t at = 0; at < tensor.bytes(); at += kPiece) {
    const size_t bytes = std::min(kPiece, tensor.bytes() - at);
    if (!narrow) {
      LS_RETURN_IF_ERROR(file.Read(tensor, at, to + at, bytes));
      continue;
    }
    wide.resize(bytes / sizeof(float));
    LS_RETURN_IF_ERROR(file.Read(tensor, at, wide.data(), bytes));
    NarrowWeights(entry.type == Type::kBFloat16, wide, reinterpret_cast<uint16_t*>(to + at / 2));
  }
  return absl::OkStatus();
}

}  // namespace

AlignedMemory AllocateAligned(size_t bytes) {
  // Large pages save much of what page faults and translations take.
  const size_t page = bytes < kLargePage ? kPage : kLargePage;
  const size_t rounded = std::max(RoundUp(bytes, page), page);
  AlignedMemory memory(std::aligned_alloc(page, rounded), std::free);
  if (memory == nullptr) return memory;
  if (page == kLargePage) {
    ::madvise(memory.get(), rounded, MADV_HUGEPAGE);  // a wish: not every kernel has it
  }
  std::memset(memory.get(), 0, rounded);
  return memory;
}

absl::StatusOr<std::unique_ptr<SavedModel>> SavedModel::Open(const std::string& path, int threads,
                                                             const std::string& device,
                                                             int64_t block, bool decode) {
  if (absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is a job file: name a saved model, such as the folder model/ of a run"));
  }
  if (::access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        "no ", path, ": a saved model is a folder with model.safetensors and config.json"));
  }
  if (IsFolder(path + "/model") && ::access((path + "/config.json").c_str(), F_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(path, " is the folder of a run: its model is ", path, "/model"));
  }
  const std::string file = IsFolder(path) ? path + "/model.safetensors" : path;
  const size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : file.substr(0, slash);
  std::unique_ptr<SavedModel> model(new SavedModel());
  LS_ASSIGN_OR_RETURN(model->config_, ReadConfig(folder + "/config.json"));
  engine::TrainSpec spec;
  LS_ASSIGN_OR_RETURN(spec.model, ModelSpecOf(model->config_.model()));
  spec.input = InputOf(model->config_);
  // The config of an older version does not say it.
  spec.eval_block = EvalBlockOf(block > 0 ? block : model->config_.eval_block(), spec.input.fields);
  spec.passes = PassOptionsOf(model->config_.passes());
  spec.decode = decode;
  spec.threads = std::max(1, threads);
  if (!model->config_.precision().empty()) spec.precision = model->config_.precision();
  const bool cuda = absl::StartsWith(device, "cuda");
  if (cuda) spec.device = engine::DeviceKind::kCuda;
  LS_ASSIGN_OR_RETURN(model->plan_, engine::Plan::CompileInference(spec));
  const size_t weights = model->plan_->state_bytes(),
               arena = cuda ? 0 : model->plan_->arena_bytes();
  // The kernel gives more than there is, and ends somebody when it is written to.
  bool fits = static_cast<double>(weights) + static_cast<double>(arena) <=
              static_cast<double>(AvailableMemory());
  if (fits) model->state_ = AllocateAligned(weights);
  fits = fits && model->state_ != nullptr;
  if (fits && !cuda) model->arena_ = AllocateAligned(arena);
  if (!fits || (!cuda && model->arena_ == nullptr)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for the model: its weights take ", BytesText(static_cast<double>(weights)),
        cuda ? "" : absl::StrCat(", a block ", BytesText(static_cast<double>(arena))), ", and ",
        BytesText(static_cast<double>(AvailableMemory())), " are left"));
  }
  engine::Memory memory{model->state_.get(), model->arena_.get()};
  if (cuda && device.size() > 5 && !absl::SimpleAtoi(device.substr(5), &memory.gpu)) {
    return absl::InvalidArgumentError(absl::StrCat("no device is named ", device));
  }
  LS_ASSIGN_OR_RETURN(model->executor_, engine::Executor::Create(model->plan_, memory));
  LS_RETURN_IF_ERROR(model->LoadWeights(file));
  return model;
}

absl::Status SavedModel::LoadWeights(const std::string& file) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::SafetensorsFile> tensors,
                      checkpoint::SafetensorsFile::Open(file));
  size_t used = 0;
  auto* const state = static_cast<char*>(executor_->BeginLoad());
  absl::Status status;
  for (const engine::StateEntry& entry : plan_->state()) {
    if (entry.role == engine::StateEntry::Role::kScalar) continue;
    const checkpoint::TensorEntry* tensor = tensors->Find(entry.name);
    using Type = engine::StateEntry::Type;
    const char* const dtype = entry.type == Type::kInt64 ? "I64" : "F32";
    if (tensor == nullptr || tensor->dtype != dtype || tensor->shape != entry.shape) {
      status = absl::DataLossError(absl::StrCat(
          file, ": ", tensor == nullptr ? "has no tensor " : "another shape or type of ",
          entry.name, "; config.json's model has it as ", dtype, " [",
          absl::StrJoin(entry.shape, ","), "]"));
      break;
    }
    status = ReadWeights(*tensors, *tensor, entry, state + entry.offset);
    if (!status.ok()) break;
    ++used;
  }
  executor_->EndLoad();
  if (status.ok() && used != tensors->tensors().size()) {
    status = absl::DataLossError(absl::StrCat(file, " has ", tensors->tensors().size(),
                                              " tensors, but config.json's model has ", used));
  }
  return status;
}

absl::Status CheckFinite(absl::Span<const float> outputs) {
  const bool finite = std::all_of(outputs.begin(), outputs.end(),
                                  [](float output) { return std::isfinite(output); });
  if (finite) return absl::OkStatus();
  return absl::DataLossError(
      "the model's outputs are not finite: its weights are not, or overflow its precision");
}

absl::Status SavedModel::CheckFits(const data::Dataset& dataset) const {
  LS_RETURN_IF_ERROR(CheckSamplesFit(plan_->spec().input.fields, dataset.fields(),
                                     "the model takes", "the data has"));
  const std::vector<std::string> has = dataset.origin().columns;
  std::vector<std::string> takes;
  for (const std::string& name : config_.columns()) {  // earlier models have the file's two quotes
    takes.push_back(absl::StrReplaceAll(name, {{"\"\"", "\""}}));
  }
  if (has.empty() || takes.empty() || has == takes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the columns of the data are ",
                                                 absl::StrJoin(has, ", "), ", but the model takes ",
                                                 absl::StrJoin(takes, ", "), ", in this order"));
}

bool SavedModel::takes_raw_bytes() const {
  const Data& data = config_.data();
  const bool numbers = !config_.input_type().empty() && config_.input_type() != "uint8";
  return data.has_csv() || data.has_synthetic() || (data.has_npy() && numbers);
}

absl::Status SavedModel::ForEachBlock(const data::Dataset& dataset, const BlockReader::Run& run) {
  LS_RETURN_IF_ERROR(CheckFits(dataset));
  LS_ASSIGN_OR_RETURN(
      const std::unique_ptr<BlockReader> reader,
      BlockReader::Create(&dataset, executor_.get(), plan_->spec().eval_block, nullptr));
  return reader->ForEach({}, run);
}

namespace {

// The test split of `source`, whose relative paths are meant from `workdir`.
absl::StatusOr<std::unique_ptr<data::Dataset>> OpenFrom(const std::string& workdir,
                                                        const data::Source& source) {
  // A model may have come here without the folder, and its data need not lie in there.
  const int missing = workdir.empty() || ::chdir(workdir.c_str()) == 0 ? 0 : errno;
  absl::StatusOr<std::unique_ptr<data::Dataset>> dataset = data::Open(source, data::Split::kTest);
  if (missing == 0) {
    std::error_code unknown;
    const std::string folder = std::filesystem::current_path(unknown).string();
    if (!absl::StrContains(dataset.status().message(), std::strerror(ENOENT)) || unknown) {
      return dataset;
    }
    return absl::Status(dataset.status().code(),
                        absl::StrCat(dataset.status().message(), "; relative paths are meant from ",
                                     folder, workdir.empty() ? ", as the job has no workdir" : ""));
  }
  if (dataset.ok()) {
    LS_LOG_WARNING << "the job's workdir " << workdir << " cannot be entered ("
                   << std::strerror(missing)
                   << "): relative paths of its data are meant from the current folder";
    return dataset;
  }
  return absl::Status(
      dataset.status().code(),
      absl::StrCat(dataset.status().message(), "; relative paths are meant from the job's workdir ",
                   workdir, ", which cannot be entered: ", std::strerror(missing)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<data::Dataset>> SavedModel::OpenTestSplit(const JobSpec* job) const {
  Train train;
  *train.mutable_data() = job != nullptr ? job->train().data() : config_.data();
  train.set_seed(job != nullptr ? job->train().seed() : config_.seed());
  LS_ASSIGN_OR_RETURN(data::Source source, DataSource(train));
  // A model knows what its inputs and classes are, and needs no file that it learnt from.
  if (auto* const npy = std::get_if<data::NpySource>(&source)) {
    npy->raw_bytes = takes_raw_bytes();
    npy->classes = config_.classes();
    if (!config_.input_type().empty()) npy->train_inputs.clear();
  }
  if (auto* const idx = std::get_if<data::IdxSource>(&source)) {
    idx->raw_bytes = takes_raw_bytes();
    idx->classes = config_.classes();
  }
  if (auto* const csv = std::get_if<data::CsvSource>(&source)) csv->classes = config_.classes();
  LS_ASSIGN_OR_RETURN(std::unique_ptr<data::Dataset> dataset,
                      OpenFrom(job != nullptr ? job->workdir() : config_.workdir(), source));
  const std::string type = dataset->origin().type;
  if (config_.input_type() == "uint8" && !type.empty() && type != "uint8") {
    return absl::InvalidArgumentError(
        absl::StrCat("the inputs of the test split are ", type,
                     ", and the model learnt from uint8, which are divided by 255: save them as "
                     "uint8, from 0 to 255"));
  }
  return dataset;
}

}  // namespace lockstep::worker
