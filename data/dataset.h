// SPDX-License-Identifier: Apache-2.0
// A data set with random access: sample i of n, always the same bytes.
// Thread-safety: immutable after opening; ReadBatch may be called by several threads.
#ifndef LOCKSTEP_DATA_DATASET_H_
#define LOCKSTEP_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/field.h"

namespace lockstep::data {

// The samples of one shard at one step. Step and shard are the address of what is random about a
// sample (augmentation, masking): they do not choose samples.
struct ReadRequest {
  absl::Span<const int64_t> indices;
  int64_t step = 0;  // 0-based
  int shard = 0;
};

// What the files of a data set say of its first field, besides its shape.
struct InputOrigin {
  std::string type = {};                  // as numpy names it: "uint8"; empty: not told
  std::vector<std::string> columns = {};  // a table's, but the label's; empty: they have no names
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Returns what a sample is made of; the targets are the field "labels".
  virtual const std::vector<FieldSpec>& fields() const = 0;
  // Targets are in [0, classes).
  virtual int64_t classes() const = 0;
  // Writes the samples of `request` into one array for each of fields(), [samples, shape...]. Does
  // not allocate. The bytes are a function of the request alone. Errors: DataLoss.
  virtual absl::Status ReadBatch(const ReadRequest& request,
                                 absl::Span<void* const> fields) const = 0;
  // Returns the bytes of samples and labels that each process which opened it has in memory of its
  // own: what was read from files. A mapped file, which processes share, is none of them. The same
  // wherever the files are the same.
  virtual size_t own_bytes() const { return 0; }
  virtual InputOrigin origin() const { return {}; }
};

// Returns how many targets, those that do not count included, each sample of `dataset` has: 1, or
// as many as tokens where each of them has one.
int64_t TargetsPerSample(const Dataset& dataset);

struct SyntheticSource {
  int64_t train_samples = 60000;
  int64_t test_samples = 10000;
  int64_t features = 784;
  std::vector<int64_t> shape = {};  // of a sample, instead of features: {3, 32, 32}
  int classes = 10;
  uint64_t seed = 0;
};
struct FashionMnistSource {
  std::string path;  // empty: where the distribution's package puts it
  double mean = 0.2860;
  double std = 0.3530;
};
struct IdxSource {
  std::string train_images, train_labels, test_images, test_labels;
  double mean = 0;
  double std = 1;
  bool raw_bytes = false;  // bytes are numbers, and not pixels that are divided by 255
  // Above 0: they are known, and nobody asks the training split for them.
  int64_t classes = 0;
};
// Bytes as tokens. Fields: "tokens" and "labels" i32 [length], the labels being the next bytes.
// With `masked` above 0: "tokens", "segments" and "labels" for a masked language model, which
// guesses that share of the bytes (token_windows.h).
struct TextSource {
  std::string path;  // a file, or a folder: its files in the order of their names
  int64_t length = 256;
  double test_fraction = 0.1;  // the last part is the test split
  double masked = 0;
  uint64_t seed = 0;
};
// Files of tokens of 16 or 32 bits, with llm.c's header or (16 bits) without any, as nanoGPT writes
// them. Without files: made tokens.
struct TokensSource {
  std::string train = {}, test = {};
  int64_t length = 1024;
  int64_t vocab = 50257;
  int64_t train_samples = 10000;  // of made tokens
  int64_t test_samples = 1000;
  uint64_t seed = 0;
};
struct Cifar10Source {
  std::string path;
  std::vector<double> mean, std;  // one for each channel; empty: those of the training images
};
struct NpySource {
  std::string train_inputs, train_labels, test_inputs, test_labels;
  std::vector<double> mean, std;  // one for all, one for each channel, or none: 0 and 1
  int64_t vocab = 0;              // above 0: the inputs are token numbers below it (npy_tokens.h)
  int64_t padding = -1;           // the token that fills samples up at their end; negative: none
  bool raw_bytes = false;         // uint8 are numbers, and not pixels that are divided by 255
  int64_t classes = 0;            // as in IdxSource
};
struct CsvSource {
  std::string train, test;
  std::string label = "-1";     // a column's name or number
  std::string header = "auto";  // auto, yes, no
  // As in IdxSource; then the columns are not compared with those of the training split.
  int64_t classes = 0;
};
using Source = std::variant<SyntheticSource, FashionMnistSource, IdxSource, TextSource,
                            TokensSource, Cifar10Source, NpySource, CsvSource>;

enum class Split { kTrain, kTest };

// Random changes of training images (data/augment.h).
struct Augment {
  int crop_padding = 0;
  bool flip = false;
  uint64_t seed = 0;
  bool any() const { return crop_padding > 0 || flip; }
};

// Opens a split. Decoded images are shared by the workers of a host (one decode a host, kept in the
// user's cache folder; without space or permission for it each worker decodes for itself, with a
// warning). Errors: NotFound (says where it looked and how to install or name the data),
// DataLoss (names file and offset), InvalidArgument (settings that do not fit the data).
// `augment` is for the training split; the test split is never changed.
absl::StatusOr<std::unique_ptr<Dataset>> Open(const Source& source, Split split,
                                              const Augment& augment = {});

// The fields of samples of fp32 "inputs" with one label each.
std::vector<FieldSpec> ClassificationFields(std::vector<int64_t> sample_shape, int64_t classes);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_DATASET_H_
