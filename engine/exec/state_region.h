// SPDX-License-Identifier: Apache-2.0
// The training state's memory. Debug builds make its whole pages read-only except while it is being
// written on purpose, so that a stray write stops the program where it happens.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_ENGINE_EXEC_STATE_REGION_H_
#define LOCKSTEP_ENGINE_EXEC_STATE_REGION_H_

#include <cstddef>
#include <cstdint>

#include "engine/engine.h"

namespace lockstep::engine {

class StateRegion {
 public:
  // Protects only when `base` is page aligned; pages that the region does not fill stay writable.
  StateRegion(void* base, size_t bytes);
  ~StateRegion();
  StateRegion(const StateRegion&) = delete;
  StateRegion& operator=(const StateRegion&) = delete;

  // Writable while one lives; they nest.
  class Writing {
   public:
    explicit Writing(StateRegion* region) : region_(region) { region_->Open(); }
    ~Writing() { region_->Close(); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    StateRegion* region_;
  };
  // One more, or one less, who writes. Use Writing.
  void Open();
  void Close();

  std::byte* base() const { return base_; }
  template <typename T>
  T* At(const StateEntry& entry) const {
    return reinterpret_cast<T*>(base_ + entry.offset);
  }

 private:
  std::byte* const base_;
  size_t protected_bytes_ = 0;
  int open_ = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_STATE_REGION_H_
