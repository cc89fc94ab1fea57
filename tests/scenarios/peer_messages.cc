// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/peer_messages.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace lockstep::coordinator {

std::string JobOf(const std::string& worker) { return worker.substr(0, worker.find('.')); }

int64_t PidOf(const std::string& worker) {
  int64_t slot = 0;
  const std::vector<std::string> parts = absl::StrSplit(worker, '.');
  LS_CHECK(parts.size() >= 2 && absl::SimpleAtoi(parts[1], &slot)) << worker;
  return 100 + slot;
}

AgentHello ParseHello(const Command& command) {
  const std::string node = command.word(0);
  AgentHello hello;
  hello.set_node_id(node);
  hello.set_host(command.text("host", node));
  hello.set_incarnation(absl::StrCat(node, "-", command.number("life", 1)));
  hello.set_slots(static_cast<int>(command.number("slots", 4)));
  hello.set_protocol_version(static_cast<int>(command.number("version", 1)));
  hello.set_private_agent(command.flag("private"));
  for (const std::string& label : command.list("labels")) {
    const std::vector<std::string> parts = absl::StrSplit(label, ':');
    (*hello.mutable_labels())[parts.at(0)] = parts.at(1);
  }
  for (int64_t i = 0; i < command.number("gpus"); ++i) {
    Device& device = *hello.add_devices();
    device.set_kind("cuda");
    device.set_uuid(absl::StrCat("GPU-", i));
  }
  return hello;
}

bool ParseAgentReport(const Command& command, const std::string& incarnation,
                      AgentMessage& message) {
  const std::string worker = command.word(0);
  const std::string job_id = JobOf(worker);
  if (command.verb() == "started") {
    message.mutable_started()->set_job_id(job_id);
    message.mutable_started()->set_worker_incarnation(incarnation);
    message.mutable_started()->set_pid(command.number("pid", PidOf(worker)));
  } else if (command.verb() == "died") {
    message.mutable_died()->set_job_id(job_id);
    message.mutable_died()->set_worker_incarnation(incarnation);
    message.mutable_died()->set_order(command.number("order", 1));
    message.mutable_died()->set_wanted(command.flag("wanted"));
  } else if (command.verb() == "log") {
    message.mutable_log()->set_job_id(job_id);
    message.mutable_log()->mutable_lines()->add_lines(command.text("line"));
  } else if (command.verb() == "exit") {
    WorkerExited& exited = *message.mutable_exited();
    exited.set_job_id(job_id);
    exited.set_worker_incarnation(incarnation);
    exited.set_exit_code(static_cast<int>(command.number("code")));
    exited.set_signal(static_cast<int>(command.number("signal")));
    exited.set_order(command.number("order", 1));
    exited.set_wanted(command.flag("wanted"));
    exited.set_start_error(command.text("error"));
    exited.set_node_unfit(command.flag("unfit"));
    exited.set_may_pass(command.flag("passing"));
    if (command.has("line")) exited.add_last_lines(command.text("line"));
  } else {
    return false;
  }
  return true;
}

bool ParseWorkerReport(const Command& command, WorkerMessage& message) {
  if (command.verb() == "ready") {
    WorkerReady& ready = *message.mutable_ready();
    ready.set_plan_hash(command.text("plan", "p"));
    ready.set_peer_protocol(static_cast<int32_t>(command.number("peers", 1)));
    ready.set_device_hash(command.text("device", "d"));
    ready.set_device_description(absl::StrCat("cpu ", command.text("device", "d")));
    ready.set_highest_generation(command.number("seen"));
    if (command.has("step")) ready.set_committed_step(command.number("step"));
    ready.set_data_stamp(static_cast<uint64_t>(command.number("stamp")));
    if (command.has("data")) {
      DataFile& file = *ready.add_data();
      file.set_path(command.text("file", "data/train.bin"));
      file.set_bytes(command.number("bytes", 1000));
      file.set_hash(static_cast<uint64_t>(command.number("data")));
      file.set_folder(command.flag("folder"));
    }
    if (command.has("also")) ready.add_data()->set_path(command.text("also"));
  } else if (command.verb() == "peer-lost") {
    message.mutable_peer_lost()->set_rank(static_cast<int>(command.number("rank")));
    message.mutable_peer_lost()->set_generation(command.number("generation", 1));
    message.mutable_peer_lost()->set_detail(command.text("detail", "its life word"));
    PeerLost::Kind kind = PeerLost::DIED;
    LS_CHECK(PeerLost::Kind_Parse(command.text("kind", "DIED"), &kind));
    message.mutable_peer_lost()->set_kind(kind);
  } else if (command.verb() == "checkpoint") {
    CheckpointMark& mark = *message.mutable_checkpoint()->mutable_mark();
    mark.set_generation(command.number("generation", 1));
    mark.set_step(command.number("step"));
    mark.set_path(absl::StrCat("runs/", mark.step()));
  } else if (command.verb() == "finished") {
    message.mutable_finished()->set_steps(command.number("steps", 10));
    message.mutable_finished()->set_total_steps(command.number("total", 0));
    message.mutable_finished()->set_drained(command.flag("drained"));
  } else if (command.verb() == "failed") {
    message.mutable_failed()->set_code(static_cast<int>(command.number("code", 13)));
    message.mutable_failed()->set_message(command.text("message"));
    if (command.flag("other_data")) message.mutable_failed()->set_kind(WorkerFailed::OTHER_DATA);
  } else if (command.verb() == "eval") {
    message.mutable_eval()->set_step(command.number("step"));
    double accuracy = 0;
    LS_CHECK(absl::SimpleAtod(command.text("accuracy", "0"), &accuracy));
    message.mutable_eval()->set_accuracy(accuracy);
  } else {
    return false;
  }
  return true;
}

}  // namespace lockstep::coordinator
