// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/drains.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {

Drains::Drains(World* world) : world_(world), random_(world->options.seed * 65537 + 1) {}

void Drains::Begin(absl::Time until) {
  until_ = until;
  world_->timeline.In(absl::Seconds(3), [this] { Next(); });
}

void Drains::Next() {
  if (world_->timeline.now() >= until_) return GiveBack();
  const auto index = static_cast<size_t>(random_.Between(1, world_->options.agents));
  const std::string& node = world_->hosts[index]->name;
  if (random_.Chance(0.6)) {
    world_->Say(absl::StrCat(node, " is to be drained"));
    world_->Ask(coordinator::DrainRequested{node, "", "admin"}, &world_->checker.drains(node));
  } else {
    world_->Ask(coordinator::UndrainRequested{node});
  }
  world_->timeline.In(absl::Milliseconds(random_.Between(200, 8000)), [this] { Next(); });
}

void Drains::GiveBack() {
  bool any = world_->coordinator == nullptr || !world_->coordinator->begun();
  if (!any) {
    for (const auto& [id, node] : world_->coordinator->state().nodes) {
      if (!node.drain) continue;
      any = true;
      world_->Ask(coordinator::UndrainRequested{id});
    }
  }
  if (any) world_->timeline.In(absl::Seconds(1), [this] { GiveBack(); });
}

}  // namespace lockstep::simulation
