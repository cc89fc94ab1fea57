// SPDX-License-Identifier: Apache-2.0
// One descriptor of cuDNN's graph interface (cudnn_backend_api.h). A call that fails makes all
// later ones do nothing, so that a descriptor is filled in a row and asked once.
// Thread-safety: one thread at a time.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_DESCRIPTOR_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_DESCRIPTOR_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cuda/cudnn_backend_api.h"

namespace lockstep::engine::cuda {

class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnBackend& backend, CudnnKind kind) : backend_(&backend) {
    status_ = backend.create(kind, &descriptor_);
    if (status_ != 0) descriptor_ = nullptr;
  }
  ~CudnnDescriptor() {
    if (descriptor_ != nullptr) backend_->destroy(descriptor_);
  }
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : backend_(other.backend_),
        descriptor_(std::exchange(other.descriptor_, nullptr)),
        status_(other.status_) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(status_, other.status_);
    return *this;
  }

  // `count` values of a type whose C type the library's guide says.
  CudnnDescriptor& Set(CudnnAttribute attribute, CudnnAttributeType type, int64_t count,
                       const void* values) {
    if (status_ == 0) status_ = backend_->set(descriptor_, attribute, type, count, values);
    return *this;
  }
  // An integer.
  CudnnDescriptor& Set(CudnnAttribute attribute, int64_t value) {
    return Set(attribute, CudnnAttributeType::kInt64, 1, &value);
  }
  // Integers.
  CudnnDescriptor& Set(CudnnAttribute attribute, const std::vector<int64_t>& values) {
    return Set(attribute, CudnnAttributeType::kInt64, static_cast<int64_t>(values.size()),
               values.data());
  }
  // An element of one of the library's enumerations.
  CudnnDescriptor& Set(CudnnAttribute attribute, CudnnAttributeType type, int value) {
    return Set(attribute, type, 1, &value);
  }
  // A truth value.
  CudnnDescriptor& Set(CudnnAttribute attribute, bool value) {
    return Set(attribute, CudnnAttributeType::kBoolean, 1, &value);
  }
  // Another descriptor, which the library copies or shares.
  CudnnDescriptor& Set(CudnnAttribute attribute, CudnnObject other) {
    return Set(attribute, CudnnAttributeType::kDescriptor, 1, &other);
  }
  // Has the library check it; nothing can be set from here on.
  CudnnDescriptor& Finalize() {
    if (status_ == 0) status_ = backend_->finalize(descriptor_);
    return *this;
  }

  // How many values there are, at most `wanted` of which are written to `values`; 0 on failure.
  int64_t Get(CudnnAttribute attribute, CudnnAttributeType type, int64_t wanted, void* values) {
    int64_t count = 0;
    if (status_ == 0) {
      status_ = backend_->get(descriptor_, attribute, type, wanted, &count, values);
    }
    return status_ == 0 ? count : 0;
  }
  // An integer; 0 on failure.
  int64_t GetInt(CudnnAttribute attribute) {
    int64_t value = 0;
    Get(attribute, CudnnAttributeType::kInt64, 1, &value);
    return value;
  }
  // The descriptors of `kind` that the attribute has, at most `most` of them.
  std::vector<CudnnDescriptor> GetAll(CudnnAttribute attribute, CudnnKind kind, size_t most) {
    std::vector<CudnnDescriptor> all;
    std::vector<CudnnObject> objects;
    for (size_t i = 0; i < most; ++i) {
      all.emplace_back(*backend_, kind);
      if (status_ == 0) status_ = all.back().status();
      objects.push_back(all.back().object());
    }
    const int64_t count = Get(attribute, CudnnAttributeType::kDescriptor,
                              static_cast<int64_t>(most), static_cast<void*>(objects.data()));
    while (static_cast<int64_t>(all.size()) > count) all.pop_back();
    return all;
  }

  CudnnObject object() const { return descriptor_; }
  // Of the first call that failed; 0 when none did.
  CudnnStatus status() const { return status_; }

 private:
  const CudnnBackend* backend_;
  CudnnObject descriptor_ = nullptr;
  CudnnStatus status_ = 0;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_DESCRIPTOR_H_
