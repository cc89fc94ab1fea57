// SPDX-License-Identifier: Apache-2.0
// What of a GPU's software and hardware is there, part by part, for `launcher doctor`.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CUDA_DOCTOR_H_
#define LOCKSTEP_ENGINE_CUDA_DOCTOR_H_

#include <string>
#include <vector>

namespace lockstep::engine {

struct GpuFinding {
  enum class State { kGood, kMissing, kOptional, kDoubtful } state = State::kGood;
  std::string part;  // "driver", "CUDA module", "GPU 0", ...
  std::string text;  // its version, or what to do
};

// Loads each library once; on each GPU multiplies two small matrices, and measures copies and
// products. Blocks for seconds.
std::vector<GpuFinding> ExamineGpus();

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_DOCTOR_H_
