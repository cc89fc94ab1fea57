// SPDX-License-Identifier: Apache-2.0
// The goodbye of a rank that gives up before its connections became a mesh. It outlives the call in
// which it is said, so that nobody who has something to say to the coordinator waits for peers to
// hear it.
// Thread-safety: confined to its owner.
#ifndef LOCKSTEP_COLLECTIVES_TCP_DEPARTURE_H_
#define LOCKSTEP_COLLECTIVES_TCP_DEPARTURE_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "collectives/tcp/farewells.h"
#include "collectives/tcp/link.h"
#include "collectives/tcp/wire.h"
#include "common/thread.h"

namespace lockstep {

class Departure {
 public:
  // Says `goodbye` on `links`. Does not block: a thread closes each once its peer has it, or at
  // `until`.
  Departure(const Goodbye& goodbye, std::vector<std::unique_ptr<Link>> links, absl::Time until);
  // Blocks until they are closed.
  ~Departure() = default;

 private:
  const std::vector<std::unique_ptr<Link>> links_;
  Farewells farewells_;
  Thread thread_;  // last: it uses the others
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_DEPARTURE_H_
