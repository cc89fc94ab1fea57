// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/tuning.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/durable_file.h"
#include "common/lock_file.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cuda/gemm.h"

namespace lockstep::engine::cuda {
namespace {

// A plan has some dozens of products, each measured in a tenth of a second, and as many
// convolutions, for which cuDNN compiles several graphs each. Who died holds no lock.
constexpr absl::Duration kLockDeadline = absl::Minutes(30);
// Of the workspace, where biases and units are taken from.
constexpr size_t kBiasBytes = size_t{256} << 10;
constexpr int kWrittenTogether = 8;
// Made numbers repeat after so many bytes, which no row is a divisor of.
constexpr size_t kMadeBytes = (size_t{256} << 10) + 272;

const char* NameOf(Fp8 fp8) { return fp8 == Fp8::kE4M3 ? "e4m3" : "e5m2"; }

std::string ToWord(const MatmulAlgorithm& algorithm) {
  std::string word =
      absl::StrCat(algorithm.fused ? "fused" : "plain", ".", absl::Hex(algorithm.workspace_bytes));
  for (const uint64_t part : algorithm.words) absl::StrAppend(&word, ".", absl::Hex(part));
  return word;
}

bool FromWord(absl::string_view word, MatmulAlgorithm* algorithm) {
  const std::vector<absl::string_view> parts = absl::StrSplit(word, '.');
  constexpr size_t kWords = std::size(MatmulAlgorithm{}.words);
  if (parts.size() != 2 + kWords || (parts[0] != "fused" && parts[0] != "plain")) return false;
  algorithm->fused = parts[0] == "fused";
  bool good = absl::SimpleHexAtoi(parts[1], &algorithm->workspace_bytes);
  for (size_t i = 0; i < kWords; ++i) {
    good = good && absl::SimpleHexAtoi(parts[2 + i], &algorithm->words[i]);
  }
  return good;
}

std::string ToWord(bool fused) { return fused ? "together" : "apart"; }

std::string ToWord(const CudnnAlgorithm& algorithm) {
  if (algorithm.number == CudnnAlgorithm::kOwn) return "own";
  if (algorithm.number == CudnnAlgorithm::kRefused) return "refused";
  std::string word =
      absl::StrCat("cudnn.", algorithm.number, ".", absl::Hex(algorithm.workspace_bytes));
  for (const auto& [type, value] : algorithm.knobs) absl::StrAppend(&word, ".", type, "=", value);
  return word;
}

bool FromWord(absl::string_view word, CudnnAlgorithm* algorithm) {
  *algorithm = {};
  if (word == "own") return true;
  if (word == "refused") {
    algorithm->number = CudnnAlgorithm::kRefused;
    return true;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(word, '.');
  if (parts.size() < 3 || parts[0] != "cudnn" || !absl::SimpleAtoi(parts[1], &algorithm->number) ||
      algorithm->number < 0 || !absl::SimpleHexAtoi(parts[2], &algorithm->workspace_bytes)) {
    return false;
  }
  for (size_t i = 3; i < parts.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> knob = absl::StrSplit(parts[i], '=');
    algorithm->knobs.emplace_back();
    if (!absl::SimpleAtoi(knob.first, &algorithm->knobs.back().first) ||
        !absl::SimpleAtoi(knob.second, &algorithm->knobs.back().second)) {
      return false;
    }
  }
  return true;
}

template <typename Algorithm>
void AppendLines(const std::map<std::pair<std::string, std::string>, Algorithm>& algorithms,
                 std::string* text) {
  for (const auto& [key, algorithm] : algorithms) {
    absl::StrAppend(text, key.first, "\t", key.second, "\t", ToWord(algorithm), "\n");
  }
}

}  // namespace

const char* NameOf(Type type) {
  if (type == Type::kBF16) return "bf16";
  return type == Type::kF16 ? "f16" : "f32";
}

std::string DescribeProduct(const MatmulShape& shape) {
  std::string text =
      absl::StrCat(shape.m, "x", shape.n, "x", shape.k, shape.a_transposed ? "t" : "n",
                   shape.b_transposed ? "t" : "n", ":", shape.lda, ":", shape.ldb, ":", shape.ldc,
                   ":", NameOf(shape.factors), ":", NameOf(shape.result), ":", shape.alignment);
  if (shape.a_fp8 != Fp8::kNone) {
    absl::StrAppend(&text, ":", NameOf(shape.a_fp8), "-", NameOf(shape.b_fp8));
  }
  if (shape.tf32) absl::StrAppend(&text, ":tf32");
  if (shape.adds) absl::StrAppend(&text, ":adds");
  if (shape.bias) absl::StrAppend(&text, ":bias-", NameOf(shape.bias_type));
  if (shape.relu) absl::StrAppend(&text, ":relu");
  const char* const epilogues[] = {"", ":gelu", ":dgelu", ":sums-a", ":sums-b"};
  absl::StrAppend(&text, epilogues[static_cast<int>(shape.epilogue)]);
  return text;
}

// ---- the table ----

void AlgorithmTable::Add(const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() != 3) continue;
    MatmulAlgorithm product;
    CudnnAlgorithm cudnn;
    if (parts[2] == ToWord(true) || parts[2] == ToWord(false)) {
      fusions_.try_emplace({parts[0], parts[1]}, parts[2] == ToWord(true));
    } else if (FromWord(parts[2], &product)) {
      products_.try_emplace({parts[0], parts[1]}, product);
    } else if (FromWord(parts[2], &cudnn)) {
      cudnn_.try_emplace({parts[0], parts[1]}, cudnn);
    }
  }
}

void AlgorithmTable::Set(const std::string& device, const std::string& product,
                         const MatmulAlgorithm& algorithm) {
  products_[{device, product}] = algorithm;
}

void AlgorithmTable::Set(const std::string& device, const std::string& node,
                         const CudnnAlgorithm& algorithm) {
  cudnn_[{device, node}] = algorithm;
}

void AlgorithmTable::SetFusion(const std::string& device, const std::string& node, bool fused) {
  fusions_[{device, node}] = fused;
}

const bool* AlgorithmTable::FindFusion(const std::string& device, const std::string& node) const {
  const auto it = fusions_.find({device, node});
  return it == fusions_.end() ? nullptr : &it->second;
}

const MatmulAlgorithm* AlgorithmTable::Find(const std::string& device,
                                            const std::string& product) const {
  const auto it = products_.find({device, product});
  return it == products_.end() ? nullptr : &it->second;
}

const CudnnAlgorithm* AlgorithmTable::FindCudnn(const std::string& device,
                                                const std::string& node) const {
  const auto it = cudnn_.find({device, node});
  return it == cudnn_.end() ? nullptr : &it->second;
}

std::string AlgorithmTable::ToText(bool refused) const {
  std::string text;
  AppendLines(products_, &text);
  AppendLines(fusions_, &text);
  std::map<Key, CudnnAlgorithm> cudnn = cudnn_;
  const auto is_refused = [](const auto& line) {
    return line.second.number == CudnnAlgorithm::kRefused;
  };
  if (!refused) std::erase_if(cudnn, is_refused);
  AppendLines(cudnn, &text);
  return text;
}

// ---- measuring ----

ProductTuning::ProductTuning(Device* device, Stopwatch stopwatch, std::vector<std::string> files,
                             const Scratch& scratch)
    : device_(*device),
      files_(std::move(files)),
      scratch_(scratch),
      name_(absl::StrFormat("%s sm_%d%d, %s, %s", device->properties().name,
                            device->properties().compute_major, device->properties().compute_minor,
                            device->tables().matmul->version(), device->tables().name)),
      stopwatch_(stopwatch) {}

absl::StatusOr<std::unique_ptr<ProductTuning>> ProductTuning::Open(Device* device,
                                                                   std::vector<std::string> files,
                                                                   const Scratch& scratch) {
  LS_CHECK(!files.empty());
  LS_ASSIGN_OR_RETURN(const Stopwatch stopwatch, Stopwatch::Make(device));
  std::unique_ptr<ProductTuning> tuning(
      new ProductTuning(device, stopwatch, std::move(files), scratch));
  LS_RETURN_IF_ERROR(tuning->Lock());
  LS_RETURN_IF_ERROR(tuning->FillScratch());
  for (const std::string& file : tuning->files_) tuning->table_.Add(ReadText(file));
  return tuning;
}

absl::Status ProductTuning::Lock() {
  absl::StatusOr<UniqueFd> lock = LockFile(files_.back() + ".lock", kLockDeadline);
  if (absl::IsUnavailable(lock.status())) {
    LS_LOG_WARNING << "matrix products are not measured, as " << lock.status().message();
    return absl::OkStatus();
  }
  if (!lock.ok()) {
    return absl::DeadlineExceededError(absl::StrCat(
        lock.status().message(), " to measure matrix products: end it, or remove that file"));
  }
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status ProductTuning::FillScratch() {
  const Kernels& kernels = *device_.tables().kernels;
  const std::pair<void*, size_t> parts[] = {{scratch_.memory, scratch_.bytes},
                                            {scratch_.workspace, kBiasBytes}};
  for (const auto& [data, bytes] : parts) {
    size_t done = std::min(bytes, kMadeBytes);
    const FillArgs args{data, static_cast<int64_t>(done / 16)};
    LS_RETURN_IF_ERROR(device_.Check(kernels.fill(args, device_.compute()), "made operands"));
    auto* const memory = static_cast<std::byte*>(data);
    while (done < bytes) {
      const size_t more = std::min(done, bytes - done);
      LS_RETURN_IF_ERROR(device_.Copy(memory + done, memory, more, device_.compute()));
      done += more;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<MatmulAlgorithm> ProductTuning::Choose(const MatmulShape& shape) {
  const std::string product = DescribeProduct(shape);
  if (const MatmulAlgorithm* known = table_.Find(name_, product)) return *known;
  std::vector<MatmulAlgorithm> found(kMatmulCandidates);
  std::array<char, 512> error{};
  const int count = device_.tables().matmul->candidates(shape, kCudaWorkspaceBytes, found.data(),
                                                        error.data(), error.size());
  if (count == 0) return absl::InternalError(error.data());
  found.resize(static_cast<size_t>(count));
  if (!lock_.valid() || count == 1) {
    table_.Set(name_, product, found[0]);
    return found[0];
  }
  LS_ASSIGN_OR_RETURN(const MatmulAlgorithm chosen, Measure(shape, found));
  ++measured_;
  table_.Set(name_, product, chosen);
  NoteMeasured();
  return chosen;
}

absl::StatusOr<bool> ProductTuning::PrefersFused(const std::string& node, const CudaKernel& fused,
                                                 const CudaKernel& apart) {
  LS_ASSIGN_OR_RETURN(const bool fuses, Fuses(node, fused, apart));
  ++chosen_[fuses ? "product with what follows" : "product and own kernels"];
  return fuses;
}

absl::StatusOr<bool> ProductTuning::Fuses(const std::string& node, const CudaKernel& fused,
                                          const CudaKernel& apart) {
  if (const bool* known = table_.FindFusion(name_, node)) return *known;
  if (!lock_.valid() || scratch_.context.stream == nullptr) return true;
  std::vector<Stopwatch::Way> ways;
  for (const CudaKernel* kernel : {&fused, &apart}) {
    ways.emplace_back([this, kernel] { return (*kernel)(scratch_.context); });
    LS_RETURN_IF_ERROR(device_.Check(ways.back()(), node));  // both have run before they are timed
  }
  LS_ASSIGN_OR_RETURN(const Stopwatch::Result result,
                      stopwatch_.Compare(ways, "measuring what follows a matrix product"));
  LS_LOG_DEBUG << node << ": " << result.milliseconds[0] << " ms as one product, "
               << result.milliseconds[1] << " ms with kernels of our own";
  table_.SetFusion(name_, node, result.quickest == 0);
  NoteMeasured();
  return result.quickest == 0;
}

// The operands lie one after another; where there is no room the factors lie over each other, and
// only where there is less than that over the result, which is of no interest.
ProductTuning::Places ProductTuning::PlacesOf(const MatmulShape& shape) const {
  const auto bytes = [](int64_t rows, int64_t stride, size_t each) {
    return AlignedBytes(static_cast<size_t>(rows * stride) * each);
  };
  const size_t each = FactorBytes(shape);
  const size_t c = bytes(shape.m, shape.ldc, BytesOf(shape.result));
  const size_t a = bytes(shape.a_transposed ? shape.k : shape.m, shape.lda, each);
  const size_t b = bytes(shape.b_transposed ? shape.n : shape.k, shape.ldb, each);
  Places places;
  const size_t end = scratch_.bytes / 256 * 256;
  if (std::max({a, b, c}) > end) return places;
  const bool fits = a + b + c <= end;
  places.c = scratch_.memory;
  places.a = scratch_.memory + (fits ? c : end - a);
  places.b = scratch_.memory + (fits ? c + a : end - b);
  // Sums are no longer than the workspace; a matrix beside C lies over it.
  const bool sums = shape.epilogue == Epilogue::kSumsA || shape.epilogue == Epilogue::kSumsB;
  places.aux = sums ? scratch_.workspace : places.c;
  if (shape.a_fp8 != Fp8::kNone) places.unit = static_cast<const float*>(scratch_.workspace);
  return places;
}

Code ProductTuning::Run(const Candidate& candidate, const Places& places) {
  const MatmulRun run{places.a,    places.b,    places.c, scratch_.workspace, places.aux,
                      places.unit, places.unit, false,    scratch_.workspace};
  return device_.tables().matmul->run(candidate.prepared.get(), run, device_.compute());
}

std::vector<ProductTuning::Candidate> ProductTuning::Warm(const MatmulShape& shape,
                                                          const std::vector<MatmulAlgorithm>& found,
                                                          const Places& places) {
  const Matmul* matmul = device_.tables().matmul;
  std::vector<Candidate> candidates;
  for (const MatmulAlgorithm& algorithm : found) {
    std::array<char, 512> error{};
    void* prepared = matmul->prepare(shape, algorithm, error.data(), error.size());
    if (prepared == nullptr) continue;
    Candidate candidate{algorithm, std::shared_ptr<void>(prepared, matmul->destroy)};
    if (Run(candidate, places) == 0) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

absl::StatusOr<MatmulAlgorithm> ProductTuning::Measure(const MatmulShape& shape,
                                                       const std::vector<MatmulAlgorithm>& found) {
  const Places places = PlacesOf(shape);
  if (places.c == nullptr) return found[0];
  std::vector<Candidate> candidates = Warm(shape, found, places);
  if (candidates.empty()) return found[0];
  std::vector<Stopwatch::Way> ways;
  for (const Candidate& candidate : candidates) {
    ways.emplace_back([&] { return Run(candidate, places); });
  }
  LS_ASSIGN_OR_RETURN(const Stopwatch::Result result,
                      stopwatch_.Compare(ways, "measuring a matrix product"));
  LS_LOG_DEBUG << DescribeProduct(shape) << ": " << result.milliseconds[result.quickest]
               << " ms instead of " << result.milliseconds[0] << " ms of " << candidates.size()
               << " algorithms";
  return candidates[result.quickest].algorithm;
}

void ProductTuning::NoteMeasured() {
  if (++unwritten_ == kWrittenTogether) WriteFiles();
}

void ProductTuning::Finish() {
  const Code cleared = device_.runtime().clear(scratch_.memory, scratch_.bytes, device_.compute());
  if (cleared != 0) {
    LS_LOG_WARNING << device_.Check(cleared, "made operands").message();
  }
  WriteFiles();
  lock_.reset();
}

void ProductTuning::WriteFiles() {
  unwritten_ = 0;
  for (const std::string& file : files_) {
    const std::string text = table_.ToText(/*refused=*/file == files_.front());
    if (ReadText(file) == text) continue;
    const absl::Status written = WriteFileDurably(file, text);
    if (!written.ok()) {
      LS_LOG_WARNING << "the choice of matrix products is not kept: " << written.message();
    }
  }
}

}  // namespace lockstep::engine::cuda
