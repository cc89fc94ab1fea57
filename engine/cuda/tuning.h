// SPDX-License-Identifier: Apache-2.0
// Which of the library's algorithms each matrix product uses: those that files know from an earlier
// run, and for others the quickest of the library's, measured once on this GPU before it does
// anything else. The same files keep what cuDNN does (cudnn_tuning.h). An algorithm
// decides the order of additions within a product, so all workers of a job must use the same ones:
// workers of one host share the files, and one of them at a time measures while the others wait for
// what it writes.
// Thread-safety: confined to one thread; processes exclude each other by a lock on a file.
#ifndef LOCKSTEP_ENGINE_CUDA_TUNING_H_
#define LOCKSTEP_ENGINE_CUDA_TUNING_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/stopwatch.h"

namespace lockstep::engine::cuda {

// "bf16", as names in files have it.
const char* NameOf(Type type);

// A product as one word, by which files name it: equal for equal products.
std::string DescribeProduct(const MatmulShape& shape);

// How a convolution or attention is done: by our own kernels, or by one of cuDNN's algorithms.
struct CudnnAlgorithm {
  static constexpr int kOwn = -1;
  // Our own kernels, since the library refused to say what it has: nothing was compared, and what
  // it refuses for may be mended.
  static constexpr int kRefused = -2;
  int number = kOwn;  // cuDNN's, of that direction; of a graph: of an engine
  size_t workspace_bytes = 0;
  // Of a graph: the engine's, as (type, value) in the order of types.
  std::vector<std::pair<int, int64_t>> knobs = {};
  bool operator==(const CudnnAlgorithm&) const = default;
  // Returns whether our own kernels do it.
  bool own() const { return number < 0; }
};

// Algorithms by GPU with library, and product or other node, as text: a line each.
class AlgorithmTable {
 public:
  // Takes the lines of `text` that it does not know yet; what is no such line is left out.
  void Add(const std::string& text);
  void Set(const std::string& device, const std::string& product, const MatmulAlgorithm& algorithm);
  void Set(const std::string& device, const std::string& node, const CudnnAlgorithm& algorithm);
  // Says whether what follows a product is part of it, or kernels of our own behind it.
  void SetFusion(const std::string& device, const std::string& node, bool fused);
  // Null when it is not known.
  const bool* FindFusion(const std::string& device, const std::string& node) const;
  const MatmulAlgorithm* Find(const std::string& device, const std::string& product) const;
  const CudnnAlgorithm* FindCudnn(const std::string& device, const std::string& node) const;
  // Returns its lines; those of nodes that the library refused only with `refused`.
  std::string ToText(bool refused) const;

 private:
  using Key = std::pair<std::string, std::string>;
  std::map<Key, MatmulAlgorithm> products_;
  std::map<Key, bool> fusions_;
  std::map<Key, CudnnAlgorithm> cudnn_;
};

// The algorithms of one device's products while a plan is prepared.
class ProductTuning {
 public:
  // What may be written over while products are timed, and is zeros afterwards. Zeros themselves
  // would not do: hardly a bit changes from one to the next, and a GPU's clock, which depends on
  // the power that this takes, shows algorithms quicker than they are.
  struct Scratch {
    std::byte* memory = nullptr;
    size_t bytes = 0;
    void* workspace = nullptr;  // kCudaWorkspaceBytes
    CudaContext context = {};   // where the operands of whole nodes lie
  };
  // Reads `files`, the first that knows a product deciding, and keeps other processes that have the
  // same last file waiting until Finish. The first is the run's, the others are shared with other
  // runs: what cuDNN refused is kept in the first alone. Waits for them likewise. Where that file's
  // folder cannot be written nothing is measured: unknown products take the library's own choice.
  // REQUIRES: files. Errors: DeadlineExceeded when another process has measured for minutes;
  // Internal.
  static absl::StatusOr<std::unique_ptr<ProductTuning>> Open(Device* device,
                                                             std::vector<std::string> files,
                                                             const Scratch& scratch);

  // The product's algorithm; measures when no file knows one. Blocks meanwhile.
  // Errors: Internal with the library's reason.
  absl::StatusOr<MatmulAlgorithm> Choose(const MatmulShape& shape);
  // Returns whether the kernel `fused` of a node, whose product does all of it, is quicker than
  // `apart`, which has kernels of our own behind a plain product; measures when no file knows it.
  // `node` names it in files. Blocks meanwhile. Errors: Internal.
  absl::StatusOr<bool> PrefersFused(const std::string& node, const CudaKernel& fused,
                                    const CudaKernel& apart);
  // Says that something was measured and is in the table. All files are written with every eighth
  // of them, so that a process that ends while it measures has not measured for nothing.
  void NoteMeasured();
  // Leaves zeros in what was written over, writes what is known to the files and lets other
  // processes go on. A file that cannot be written is warned about: the next run measures again.
  void Finish();
  // Returns how many nodes are one product with what follows it, and how many are not though the
  // library could: "product with what follows", "product and own kernels".
  const std::map<std::string, int>& chosen() const { return chosen_; }
  // Products that were measured.
  int measured() const { return measured_; }
  // Returns whether what no file knows is measured.
  bool measures() const { return lock_.valid(); }
  // Returns what is known, and what the files will have.
  AlgorithmTable& table() { return table_; }
  // The device, the library and the module, as the table has them.
  const std::string& name() const { return name_; }
  // The file that is read last. For messages.
  const std::string& last_file() const { return files_.back(); }

 private:
  struct Candidate {
    MatmulAlgorithm algorithm;
    std::shared_ptr<void> prepared;
  };
  // Where the operands of a product that is timed lie.
  struct Places {
    const void* a = nullptr;
    const void* b = nullptr;
    void* c = nullptr;
    void* aux = nullptr;
    const float* unit = nullptr;  // of factors in FP8
  };

  ProductTuning(Device* device, Stopwatch stopwatch, std::vector<std::string> files,
                const Scratch& scratch);
  absl::Status Lock();
  // As PrefersFused.
  absl::StatusOr<bool> Fuses(const std::string& node, const CudaKernel& fused,
                             const CudaKernel& apart);
  // Fills what products are timed on with numbers that change many bits.
  absl::Status FillScratch();
  // The quickest of `found`.
  absl::StatusOr<MatmulAlgorithm> Measure(const MatmulShape& shape,
                                          const std::vector<MatmulAlgorithm>& found);
  // Those of `found` that run.
  std::vector<Candidate> Warm(const MatmulShape& shape, const std::vector<MatmulAlgorithm>& found,
                              const Places& places);
  Code Run(const Candidate& candidate, const Places& places);
  Places PlacesOf(const MatmulShape& shape) const;
  void WriteFiles();

  Device& device_;
  const std::vector<std::string> files_;
  const Scratch scratch_;
  const std::string name_;
  Stopwatch stopwatch_;
  AlgorithmTable table_;
  UniqueFd lock_;  // invalid: nothing is measured
  int measured_ = 0;
  int unwritten_ = 0;  // of what was measured
  std::map<std::string, int> chosen_;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_TUNING_H_
