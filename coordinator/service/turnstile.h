// SPDX-License-Identifier: Apache-2.0
// Whose handshake is made next, as a pure machine: who speaks, gets through or leaves goes in with
// the time, whose turn it is comes out. No socket, no lock, no clock; anteroom.h is the shell
// around it.
//
// A caller gives an attempt to connect up after some seconds and begins another one, so of
// handshakes that are all made at once on too little of a processor none may ever come to its end.
// So only so many are made at once as end within a fraction of that time: more when they are quick
// and others wait, fewer when they are slow. The others wait and cost nothing. Hosts take turns,
// and where several wait no host has more than half of the places, so that one which begins
// handshakes and does not end them keeps nobody else out. Of one host it is the turn of who came
// first; but when that one has waited for long, of who came last: the first would give up before
// the end, and comes back as the last. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_TURNSTILE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_TURNSTILE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace lockstep::coordinator {

class Turnstile {
 public:
  static constexpr size_t kFewest = 16;  // at once
  static constexpr size_t kMost = 256;
  static constexpr size_t kAtFirst = 64;
  // A handshake that took less is quick, and one that took more is slow. Callers allow 5 s, those
  // who know several coordinators 2 s.
  static constexpr absl::Duration kQuick = absl::Milliseconds(750);
  static constexpr absl::Duration kSlow = absl::Milliseconds(1500);
  // Who has had a place for so long has it no more.
  static constexpr absl::Duration kPatience = absl::Seconds(4);
  // When the first has waited for so long it is the last one's turn.
  static constexpr absl::Duration kLong = absl::Seconds(1);

  // The connection `id` from `host` has something to say. REQUIRES: it has not said so before.
  void Came(uint64_t id, const std::string& host, absl::Time now);
  // Gives a place to the one whose turn it is. Nothing: nobody waits, or there is no place.
  std::optional<uint64_t> Next(absl::Time now);
  // It has made a call: its place is free.
  void Through(uint64_t id, absl::Time now);
  // It is closed, whether it waited or had a place.
  void Gone(uint64_t id, absl::Time now);

  bool anybody_waits() const { return !waiting_.empty(); }
  size_t at_once() const { return at_once_; }
  size_t inside() const { return inside_.size(); }

 private:
  struct Waits {
    uint64_t id = 0;
    absl::Time since;
  };
  struct Inside {
    std::string host;
    absl::Time since;
  };
  using Queue = std::pair<const std::string, std::deque<Waits>>;

  void LetGo(std::map<uint64_t, Inside>::iterator inside);
  // One that began at `since` is slow. Of those that were under way together one counts.
  void Slow(absl::Time since, absl::Time now);
  void EndPatience(absl::Time now);
  // The host whose turn it is; null: none may have another place.
  Queue* NextHost();

  size_t at_once_ = kAtFirst;
  absl::Time fewer_since_ = absl::InfinitePast();
  std::map<std::string, std::deque<Waits>> waiting_;  // by host; none is empty
  std::string turn_;                                  // the host that had the newest turn
  std::map<uint64_t, Inside> inside_;
  std::map<std::string, size_t> inside_of_host_;  // none is 0
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_TURNSTILE_H_
