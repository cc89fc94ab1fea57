// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/departure.h"

#include <utility>

namespace lockstep {

Departure::Departure(const Goodbye& goodbye, std::vector<std::unique_ptr<Link>> links,
                     absl::Time until)
    : links_(std::move(links)) {
  std::vector<Link*> open;
  for (const auto& link : links_) open.push_back(link.get());
  farewells_.Send(goodbye, open, -1);
  thread_ = Thread("departure", [this, until] { farewells_.AwaitTaken(until); });
}

}  // namespace lockstep
