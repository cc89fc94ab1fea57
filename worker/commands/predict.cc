// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/durable_file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "data/cifar.h"
#include "data/fingerprint.h"
#include "data/image_dataset.h"
#include "data/npy.h"
#include "data/npy_dataset.h"
#include "engine/math/math.h"
#include "worker/commands/answers.h"
#include "worker/commands/saved_model.h"
#include "worker/setup/job_plan.h"

namespace lockstep::worker {
namespace {

// How the model's training data was normalised, for inputs that come without a job.
data::NpySource NormalisationOf(const data::Source& source, const ModelConfig& config) {
  data::NpySource like;
  const ModelField& first = config.fields(0);
  if (first.name() == "tokens") like.vocab = first.limit();
  if (const auto* fashion = std::get_if<data::FashionMnistSource>(&source)) {
    like.mean = {fashion->mean};
    like.std = {fashion->std};
  } else if (const auto* idx = std::get_if<data::IdxSource>(&source)) {
    like.mean = {idx->mean};
    like.std = {idx->std};
  } else if (const auto* cifar = std::get_if<data::Cifar10Source>(&source)) {
    like.mean = cifar->mean.empty() ? data::Cifar10Mean() : cifar->mean;
    like.std = cifar->std.empty() ? data::Cifar10Std() : cifar->std;
  } else if (const auto* npy = std::get_if<data::NpySource>(&source)) {
    like.mean = npy->mean;
    like.std = npy->std;
    like.padding = npy->padding;
  }
  return like;
}

const Data& DataOf(const PredictRequest& request, const SavedModel& model) {
  return request.has_data() ? request.data().train().data() : model.config().data();
}

// Returns whether the first samples of a .npy file have a number above 1, as a pixel that is
// divided by 255 never is.
bool HasNumbersAboveOne(const std::string& path) {
  constexpr int64_t kSamples = 16;
  const auto raw = data::OpenNpyInputs(path, data::NpySource{}, /*each_token=*/false);
  if (!raw.ok()) return false;
  const FieldSpec& field = (*raw)->fields().front();
  if (field.type != FieldSpec::Type::kFloat32) return false;
  std::vector<int64_t> indices(static_cast<size_t>(std::min(kSamples, (*raw)->size())));
  std::iota(indices.begin(), indices.end(), 0);
  std::vector<float> values(indices.size() * static_cast<size_t>(field.elements()));
  std::vector<int32_t> labels(indices.size());
  void* const into[] = {values.data(), labels.data()};
  return (*raw)->ReadBatch({indices}, into).ok() &&
         std::any_of(values.begin(), values.end(), [](float value) { return value > 1; });
}

absl::StatusOr<std::unique_ptr<data::Dataset>> OpenInputs(const PredictRequest& request,
                                                          const SavedModel& model) {
  if (request.inputs().empty()) {
    return model.OpenTestSplit(request.has_data() ? &request.data() : nullptr);
  }
  Train train;
  *train.mutable_data() = DataOf(request, model);
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(train));
  data::NpySource like = NormalisationOf(source, model.config());
  like.raw_bytes = model.takes_raw_bytes();
  const bool is_npy = absl::EndsWith(request.inputs(), ".npy");
  const bool each_token = !model.plan().spec().input.fields.back().shape.empty();
  auto dataset = is_npy
                     ? data::OpenNpyInputs(request.inputs(), like, each_token)
                     : data::OpenIdxInputs(request.inputs(), like.mean, like.std, like.raw_bytes);
  if (dataset.ok() && like.raw_bytes && (*dataset)->origin().type == "uint8") {
    LS_LOG_WARNING << "the bytes of " << request.inputs()
                   << " are taken as the numbers 0 to 255, as the model learnt from numbers; it "
                   << "would divide them by 255 had it learnt from bytes";
  }
  if (dataset.ok() && is_npy && model.config().input_type() == "uint8" &&
      (*dataset)->origin().type != "uint8" && HasNumbersAboveOne(request.inputs())) {
    LS_LOG_WARNING << request.inputs()
                   << " has numbers above 1, and the model learnt from uint8, which are "
                   << "divided by 255: save them as uint8, or divide them by 255";
  }
  if (is_npy || !absl::StrContains(dataset.status().message(), "not an IDX file")) return dataset;
  return absl::Status(
      dataset.status().code(),
      absl::StrCat(dataset.status().message(),
                   "; inputs are a .npy or an IDX file; a table goes with --data JOB.yaml"));
}

// Returns `status`, of a table that does not fit, with what to do when it has no labels.
absl::Status AsForTables(absl::Status status, const PredictRequest& request,
                         const SavedModel& model) {
  const bool table = request.inputs().empty() && DataOf(request, model).has_csv();
  if (!table || !(absl::IsInvalidArgument(status) || absl::IsDataLoss(status))) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   " (a table has a column of labels; samples without labels are a "
                                   ".npy file, --inputs FILE.npy)"));
}

// The data, whose folder this process is in, is read while the answers are written. Errors:
// InvalidArgument when these would be written over a file of it.
absl::Status CheckOut(const std::string& out, const Data& data) {
  Train train;
  *train.mutable_data() = data;
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(train));
  if (out.empty() || !data::IsFileOf(source, out)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", out, "' of --out would write over a file of the data"));
}

// Where the answers go: stdout or a file that appears whole.
class Output {
 public:
  absl::Status Open(const std::string& path) {
    if (path.empty()) return absl::OkStatus();
    LS_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
    file_ = std::make_unique<DurableFile>(std::move(file));
    return absl::OkStatus();
  }
  absl::Status Write(std::string_view text) {
    if (file_ != nullptr) return file_->Append(text);
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return absl::OkStatus();
    return ResultNotWritten(errno);
  }
  absl::Status Close() { return file_ != nullptr ? file_->Commit() : absl::OkStatus(); }

 private:
  std::unique_ptr<DurableFile> file_;
};

// The numbers of one sample of a block, which are the first field where they are not whole. Errors:
// InvalidArgument when one is not finite.
absl::Status CheckSample(const data::Dataset& dataset, const BlockReader::Block& block,
                         int64_t sample, const std::string& file) {
  const FieldSpec& field = dataset.fields().front();
  if (field.type != FieldSpec::Type::kFloat32) return absl::OkStatus();
  const auto* const values = static_cast<const float*>(block.fields[0]) + sample * field.elements();
  if (std::all_of(values, values + field.elements(), [](float v) { return std::isfinite(v); })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(file.empty() ? "the data's test split" : file, ": sample ", block.first + sample,
                   ", counted from 0, has a number that is not finite in fp32"));
}

// In fp64 from the largest logit down, then rounded once.
void Softmax(absl::Span<const float> logits, std::vector<float>* probabilities) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> powers;
  double sum = 0;
  for (const float logit : logits) {
    powers.push_back(engine::Exp(static_cast<double>(logit) - top));
    sum += powers.back();
  }
  probabilities->clear();
  for (const double power : powers) probabilities->push_back(static_cast<float>(power / sum));
}

// One line of JSON for one target. The label is that of the largest logit, as in an evaluation:
// probabilities are rounded, and may be equal where logits are not.
std::string Line(int64_t index, absl::Span<const float> logits,
                 const std::vector<float>& probabilities, bool all) {
  const auto label = std::max_element(logits.begin(), logits.end()) - logits.begin();
  JsonObject line;
  line.Add("index", index).Add("label", label);
  line.Add("probability", probabilities[static_cast<size_t>(label)]);
  if (all) line.Raw("probabilities", JsonArrayOf(probabilities));
  return line.Done() + "\n";
}

}  // namespace

absl::Status AnswerPredict(const PredictRequest& request) {
  const bool npy = absl::EndsWith(request.out(), ".npy");
  LS_ASSIGN_OR_RETURN(
      const std::unique_ptr<SavedModel> model,
      SavedModel::Open(request.model(), request.threads(), request.device(), /*block=*/0));
  // The data may be that of another folder.
  const std::string& name = request.out();
  const std::string out = name.empty() ? name : std::filesystem::absolute(name).string();
  absl::StatusOr<std::unique_ptr<data::Dataset>> opened = OpenInputs(request, *model);
  absl::Status fits = opened.ok() ? model->CheckFits(**opened) : opened.status();
  if (!fits.ok()) return AsForTables(std::move(fits), request, *model);
  const std::unique_ptr<data::Dataset> dataset = *std::move(opened);
  if (request.inputs().empty()) LS_RETURN_IF_ERROR(CheckOut(out, DataOf(request, *model)));
  Output output;
  LS_RETURN_IF_ERROR(output.Open(out));
  const int64_t classes = model->config().classes();
  const int64_t targets = dataset->fields().back().elements();
  if (npy) {
    LS_RETURN_IF_ERROR(output.Write(
        data::FormatNpyHeader(data::NpyType::kFloat32, {dataset->size() * targets, classes})));
  }
  std::vector<float> probabilities;
  LS_RETURN_IF_ERROR(model->ForEachBlock(
      *dataset,
      [&](const BlockReader::Block& block,
          const engine::Inference::BlockHooks& hooks) -> absl::Status {
        LS_ASSIGN_OR_RETURN(const absl::Span<const float> logits,
                            model->executor()->Predict(block.fields, block.valid, hooks));
        // Columns beyond the classes are rows of a padded table.
        const size_t columns =
            logits.size() / static_cast<size_t>(model->plan().spec().eval_block * targets);
        for (int64_t row = 0; row < block.valid * targets; ++row) {
          const auto outputs =
              logits.subspan(static_cast<size_t>(row) * columns, static_cast<size_t>(classes));
          absl::Status finite = CheckFinite(outputs);
          if (!finite.ok()) {
            LS_RETURN_IF_ERROR(CheckSample(*dataset, block, row / targets, request.inputs()));
            return finite;
          }
          Softmax(outputs, &probabilities);
          const std::string_view bytes(reinterpret_cast<const char*>(probabilities.data()),
                                       probabilities.size() * sizeof(float));
          LS_RETURN_IF_ERROR(output.Write(npy ? std::string(bytes)
                                              : Line(block.first * targets + row, outputs,
                                                     probabilities, request.probabilities())));
        }
        return absl::OkStatus();
      }));
  return output.Close();
}

}  // namespace lockstep::worker
