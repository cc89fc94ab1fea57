// SPDX-License-Identifier: Apache-2.0
#include "collectives/vector_memory.h"

#include <cstring>

#include "collectives/communicator.h"
#include "collectives/tree_sum.h"
#include "common/status.h"

namespace lockstep {

absl::StatusOr<float*> HostVectors::Allocate(int64_t count, const std::string& what) {
  LS_ASSIGN_OR_RETURN(void* const memory,
                      transport_->Allocate(static_cast<size_t>(count) * sizeof(float), what));
  return static_cast<float*>(memory);
}

absl::Status HostVectors::Add(float* a, const float* b, int64_t count) {
  AddFloats(a, b, a, count);
  return absl::OkStatus();
}

absl::Status HostVectors::Write(float* to, const float* from, int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  return absl::OkStatus();
}

absl::Status HostVectors::Read(float* to, const float* from, int64_t count) {
  return Write(to, from, count);
}

}  // namespace lockstep
