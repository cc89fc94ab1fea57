// SPDX-License-Identifier: Apache-2.0
// A way to a server on loopback on which what the server says comes late; what it is told does not.
// It may lose its connections without a word, as a network does.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_LATE_ANSWERS_H_
#define LOCKSTEP_TESTS_CONFORMANCE_LATE_ANSWERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"

namespace lockstep {

class LateAnswers {
 public:
  LateAnswers(int port, absl::Duration late);
  ~LateAnswers();

  // From now on answers come so late.
  void SetLate(absl::Duration late) { late_nanos_ = absl::ToInt64Nanoseconds(late); }
  // From soon on nothing passes the connections that there are then, in either direction; they stay
  // open. Later ones are as ever.
  void Swallow() { swallow_ = true; }
  // Where clients connect.
  const std::string& address() const { return address_; }

 private:
  struct Connection {
    UniqueFd client, server;
    std::deque<std::pair<absl::Time, std::string>> answers;  // with the time at which each is due
    bool over = false;
    bool swallowed = false;
  };

  void Run();
  void Accept();
  void Serve(Connection& connection, short client, short server);
  void Deliver(Connection& connection);

  const int port_;
  std::atomic<int64_t> late_nanos_;
  std::atomic<bool> swallow_{false};
  UniqueFd stop_, listener_;
  std::string address_;
  std::list<Connection> connections_;  // the thread's own
  Thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_CONFORMANCE_LATE_ANSWERS_H_
