// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

// Takes the same time wherever the first difference is.
bool Same(absl::string_view given, const std::string& secret) {
  unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  }
  return difference == 0;
}

}  // namespace

Admission::Admission(uid_t own, std::vector<std::string> secrets, Limits limits, bool local_users)
    : own_(own), secrets_(std::move(secrets)), limits_(limits), local_users_(local_users) {}

Admission::Verdict Admission::Connect(const Peer& peer) {
  Ended(peer.id);  // who had the number before is gone
  const bool stranger = peer.uid.has_value() && *peer.uid != own_ && *peer.uid != 0;
  if (stranger && !local_users_) return Verdict::kStranger;
  if (connections_.size() >= limits_.connections) return Verdict::kFull;
  const bool proven = peer.uid.has_value() && !stranger;
  const std::string host = stranger ? absl::StrCat("user ", *peer.uid) : peer.host;
  if (!proven) {
    const auto found = unproven_of_host_.find(host);
    const size_t of_host = found == unproven_of_host_.end() ? 0 : found->second;
    if (unproven_ >= limits_.unproven || of_host >= limits_.unproven_of_host) return Verdict::kFull;
    ++unproven_;
    ++unproven_of_host_[host];
  }
  connections_[peer.id] = {host, peer.port, proven};
  if (!peer.host.empty()) by_place_[{peer.host, peer.port}] = peer.id;
  return Verdict::kLetIn;
}

void Admission::Ended(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Prove(found->second);  // it counts no more
  const auto place = by_place_.find({found->second.host, found->second.port});
  if (place != by_place_.end() && place->second == id) by_place_.erase(place);
  connections_.erase(found);
}

std::optional<int64_t> Admission::Refused() {
  ++refused_;
  if ((refused_ & (refused_ - 1)) != 0) return std::nullopt;
  return refused_;
}

bool Admission::Knows(absl::string_view token) const {
  bool known = false;
  for (const std::string& secret : secrets_) known |= Same(token, secret);
  return known;
}

std::optional<uint64_t> Admission::HasCalled(const std::string& host, int port) {
  const auto place = by_place_.find({host, port});
  if (place == by_place_.end()) return std::nullopt;
  if (std::exchange(connections_[place->second].called, true)) return std::nullopt;
  return place->second;
}

void Admission::HasProven(const std::string& host, int port) {
  const auto place = by_place_.find({host, port});
  if (place != by_place_.end()) Prove(connections_[place->second]);
}

void Admission::Prove(Connection& connection) {
  if (std::exchange(connection.proven, true)) return;
  --unproven_;
  const auto found = unproven_of_host_.find(connection.host);
  if (--found->second == 0) unproven_of_host_.erase(found);
}

}  // namespace lockstep::coordinator
