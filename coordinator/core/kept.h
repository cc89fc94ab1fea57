// SPDX-License-Identifier: Apache-2.0
// An optional value that is seldom there: elsewhere in memory, so that whoever goes through many
// owners without one reads a pointer of each.
// Thread-safety: as T.
#ifndef LOCKSTEP_COORDINATOR_CORE_KEPT_H_
#define LOCKSTEP_COORDINATOR_CORE_KEPT_H_

#include <memory>
#include <utility>

namespace lockstep::coordinator {

template <typename T>
class Kept {
 public:
  Kept() = default;
  Kept(const Kept& other) : value_(Copy(other)) {}
  Kept(Kept&&) noexcept = default;
  Kept& operator=(const Kept& other) {
    if (this != &other) value_ = Copy(other);
    return *this;
  }
  Kept& operator=(Kept&&) noexcept = default;
  Kept& operator=(T value) {
    if (value_ == nullptr) {
      value_ = std::make_unique<T>(std::move(value));
    } else {
      *value_ = std::move(value);
    }
    return *this;
  }

  bool has_value() const { return value_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  // A new one.
  T& emplace() {
    value_ = std::make_unique<T>();
    return *value_;
  }
  // There is none any more.
  void reset() { value_.reset(); }

 private:
  static std::unique_ptr<T> Copy(const Kept& other) {
    return other.value_ == nullptr ? nullptr : std::make_unique<T>(*other.value_);
  }

  std::unique_ptr<T> value_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_KEPT_H_
