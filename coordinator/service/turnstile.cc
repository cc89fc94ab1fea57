// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/turnstile.h"

#include <algorithm>

namespace lockstep::coordinator {

void Turnstile::Came(uint64_t id, const std::string& host, absl::Time now) {
  waiting_[host].push_back({id, now});
}

std::optional<uint64_t> Turnstile::Next(absl::Time now) {
  if (waiting_.empty()) return std::nullopt;
  if (inside_.size() >= at_once_) EndPatience(now);
  if (inside_.size() >= at_once_) return std::nullopt;
  Queue* const found = NextHost();
  if (found == nullptr) return std::nullopt;
  auto& [host, queue] = *found;
  const bool newest = now - queue.front().since > kLong;
  const uint64_t id = newest ? queue.back().id : queue.front().id;
  newest ? queue.pop_back() : queue.pop_front();
  turn_ = host;
  inside_[id] = {host, now};
  ++inside_of_host_[host];
  if (queue.empty()) waiting_.erase(turn_);
  return id;
}

Turnstile::Queue* Turnstile::NextHost() {
  auto next = waiting_.upper_bound(turn_);
  for (size_t looked = 0; looked < waiting_.size(); ++looked, ++next) {
    if (next == waiting_.end()) next = waiting_.begin();
    const auto has = inside_of_host_.find(next->first);
    const bool much = has != inside_of_host_.end() && has->second >= at_once_ / 2;
    if (waiting_.size() == 1 || !much) return &*next;
  }
  return nullptr;
}

void Turnstile::Through(uint64_t id, absl::Time now) {
  const auto found = inside_.find(id);
  if (found == inside_.end()) return;
  const absl::Time since = found->second.since;
  LetGo(found);
  if (now - since > kSlow) return Slow(since, now);
  if (now - since < kQuick && anybody_waits()) at_once_ = std::min(kMost, at_once_ + 1);
}

void Turnstile::Gone(uint64_t id, absl::Time now) {
  const auto found = inside_.find(id);
  if (found != inside_.end()) {
    const absl::Time since = found->second.since;
    LetGo(found);
    if (now - since > kSlow) Slow(since, now);
    return;
  }
  for (auto host = waiting_.begin(); host != waiting_.end(); ++host) {
    if (std::erase_if(host->second, [id](const Waits& waits) { return waits.id == id; }) == 0) {
      continue;
    }
    if (host->second.empty()) waiting_.erase(host);
    return;
  }
}

void Turnstile::LetGo(std::map<uint64_t, Inside>::iterator inside) {
  const auto of_host = inside_of_host_.find(inside->second.host);
  if (--of_host->second == 0) inside_of_host_.erase(of_host);
  inside_.erase(inside);
}

void Turnstile::Slow(absl::Time since, absl::Time now) {
  if (since < fewer_since_) return;
  at_once_ = std::max(kFewest, at_once_ - at_once_ / 4);
  fewer_since_ = now;
}

void Turnstile::EndPatience(absl::Time now) {
  for (auto inside = inside_.begin(); inside != inside_.end();) {
    const auto next = std::next(inside);
    if (now - inside->second.since > kPatience) {
      const absl::Time since = inside->second.since;
      LetGo(inside);
      Slow(since, now);
    }
    inside = next;
  }
}

}  // namespace lockstep::coordinator
