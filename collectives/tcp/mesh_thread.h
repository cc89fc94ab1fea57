// SPDX-License-Identifier: Apache-2.0
// The thread that drives a mesh while its owner computes. The owner lends it the mesh with a call
// and takes it back before it uses the mesh again: at no time do both use it, so nothing of a mesh
// or of what it moves needs a lock. The thread begins with the first loan.
//
//   thread.Lend(&reduction);             // the call's memory that is ready moves meanwhile
//   ...                                  // more becomes ready: thread.Nudge()
//   status = thread.TakeBack();          // the owner drives what is left itself
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_TCP_MESH_THREAD_H_
#define LOCKSTEP_COLLECTIVES_TCP_MESH_THREAD_H_

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "collectives/tcp/mesh.h"
#include "common/thread.h"

namespace lockstep {

class MeshThread {
 public:
  // `mesh` outlives this.
  explicit MeshThread(Mesh* mesh) : mesh_(mesh) {}
  // Takes the mesh back and joins.
  ~MeshThread();

  // REQUIRES: !lent(). Neither the mesh nor `user` is touched before TakeBack.
  void Lend(MeshUser* user);
  bool lent() const { return lent_; }
  // There is more for it to do.
  void Nudge() { mesh_->Wake(); }
  // The error that the thread has met, if it has; then it is at rest. Does not block.
  absl::Status Met() const;
  // Blocks until the thread has left the mesh, which it does after what it is at: the sum of a
  // chunk at most. OK, too, when nothing is lent. Errors: as Mesh::Run.
  absl::Status TakeBack();

 private:
  void Loop();

  Mesh* const mesh_;
  bool lent_ = false;
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  MeshUser* user_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: the thread is at rest
  absl::Status met_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_MESH_THREAD_H_
