// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/scenarios/effects_text.h"

namespace lockstep::coordinator {
namespace {

std::string ToText(const AgentHello& hello) {
  std::string text = absl::StrCat("hello, ", hello.incarnation(), " on ", hello.host());
  if (hello.running_size() > 0) absl::StrAppend(&text, "; running");
  for (const WorkerStarted& started : hello.running()) {
    absl::StrAppend(&text, " ", started.worker_incarnation());
  }
  if (hello.ended_size() > 0) {
    absl::StrAppend(&text, "; ended ", absl::StrJoin(hello.ended(), " "));
  }
  return absl::StrCat(text, "; knows ", SpeakerText(hello));
}

std::string ToText(const WorkerExited& exited) {
  std::string text = absl::StrCat("exited ", exited.worker_incarnation());
  if (exited.signal() != 0) {
    absl::StrAppend(&text, ", signal ", exited.signal());
  } else {
    absl::StrAppend(&text, ", code ", exited.exit_code());
  }
  return absl::StrCat(text, exited.wanted() ? ", ended by its agent" : "");
}

}  // namespace

std::string ToText(const AgentMessage& message) {
  if (message.has_hello()) return ToText(message.hello());
  if (message.has_started()) {
    return absl::StrCat("started ", message.started().worker_incarnation());
  }
  if (message.has_died()) return absl::StrCat("died ", message.died().worker_incarnation());
  if (message.has_exited()) return ToText(message.exited());
  if (message.has_stopping()) return "stopping";
  return message.has_heartbeat() ? "heartbeat" : "something else";
}

std::string ToText(const WorkerMessage& message) {
  if (message.has_hello()) return absl::StrCat("hello; knows ", SpeakerText(message.hello()));
  if (message.has_ready()) {
    const WorkerReady& ready = message.ready();
    return absl::StrCat(
        "ready, seen generation ", ready.highest_generation(),
        ready.has_committed_step() ? absl::StrCat(", committed ", ready.committed_step()) : "");
  }
  if (message.has_finished()) {
    return absl::StrCat("finished, ", message.finished().steps(), " steps");
  }
  if (message.has_peer_lost()) return absl::StrCat("lost rank ", message.peer_lost().rank());
  if (message.has_failed()) return absl::StrCat("failed: ", message.failed().message());
  if (message.has_checkpoint()) {
    return absl::StrCat("has a checkpoint of step ", message.checkpoint().mark().step());
  }
  if (message.has_eval()) return absl::StrCat("evaluation after step ", message.eval().step());
  return message.has_heartbeat() ? "heartbeat" : "something else";
}

}  // namespace lockstep::coordinator
