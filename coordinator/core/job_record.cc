// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/job_record.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "coordinator/core/context.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_record.h"
#include "coordinator/core/run_time.h"

namespace lockstep::coordinator {
namespace {

void FillIn(const Worker& worker, WorkerRecord& record) {
  record.set_incarnation(worker.incarnation);
  record.set_slot(worker.slot);
  record.set_local_rank(worker.local_rank);
  record.set_node_id(worker.node_id);
  record.set_host(worker.host);
  *record.mutable_device() = worker.device;
  record.set_pid(worker.pid);
  record.set_started(worker.phase >= Worker::Phase::kStarted);
  record.set_heard(worker.last_heard != absl::InfinitePast());
  if (worker.finished) *record.mutable_finished() = *worker.finished;
  record.set_died_serial(worker.died_serial);
  record.set_died_order(worker.died_order);
  if (worker.exited) *record.mutable_exited() = *worker.exited;
  record.set_failed_serial(worker.failed_serial);
  if (worker.failed) *record.mutable_failed() = *worker.failed;
  if (worker.peer_lost) *record.mutable_peer_lost() = *worker.peer_lost;
  if (!worker.lost_peer.empty()) record.set_lost_peer(worker.lost_peer);
  record.set_verdict_serial(worker.verdict_serial);
  if (!worker.verdict.empty()) record.set_verdict(worker.verdict);
  record.set_left(worker.leaving());
  record.set_fault(worker.fault);
  record.set_node_lost(worker.node_lost);
  record.set_refused(worker.refused);
  record.set_end_unknown(worker.end_unknown);
  record.set_other_data(worker.other_data);
  record.set_other_build(worker.other_build);
  record.set_trained_before(worker.trained_before.value_or(0));
  *record.mutable_allocation() = worker.allocation;
}

WorkerRecord ToRecord(const Worker& worker) {
  WorkerRecord record;
  FillIn(worker, record);
  return record;
}

// The row of a vacant place is that of one who left it and has exited.
void FillInVacancy(const Slot& slot, int index, WorkerRecord& record) {
  record.set_slot(index);
  record.set_left(true);
  record.mutable_exited()->set_peak_rss_bytes(slot.last_peak_rss_bytes);
}

OpenFaultRecord ToRecord(const OpenFault& fault) {
  OpenFaultRecord record;
  record.set_number(fault.number);
  *record.mutable_failed() = ToProto(fault.failed);
  *record.mutable_began() = ToProto(fault.began);
  record.set_generation(fault.generation);
  record.set_next_generation(fault.next_generation);
  record.set_place(fault.place);
  record.set_to_next_step_ms(fault.to_next_step_ms);
  record.set_committed(fault.committed);
  record.set_steps_lost(fault.steps_lost);
  record.set_rendezvous_ms(fault.rendezvous_ms);
  record.set_restore_ms(fault.restore_ms);
  record.set_replay_ms(fault.replay_ms);
  return record;
}

Worker::Phase PhaseOf(const WorkerRecord& record) {
  if (record.has_exited()) return Worker::Phase::kExited;
  if (record.left()) return Worker::Phase::kLeaving;
  if (record.died_serial() != 0) return Worker::Phase::kDied;
  if (record.started()) return Worker::Phase::kStarted;
  return record.node_id().empty() ? Worker::Phase::kUnplaced : Worker::Phase::kPlaced;
}

void FromRecord(const WorkerRecord& record, Worker& worker, absl::Time now) {
  worker.phase = PhaseOf(record);
  worker.incarnation = record.incarnation();
  worker.slot = record.slot();
  worker.local_rank = record.local_rank();
  worker.node_id = record.node_id();
  worker.host = record.host();
  SetDevice(record.device(), worker);
  worker.allocation = record.allocation();
  worker.pid = record.pid();
  if (record.heard()) worker.last_heard = worker.progress_moved = now;
  if (record.has_finished()) worker.finished = record.finished();
  worker.died_serial = record.died_serial();
  worker.died_order = record.died_order();
  if (record.has_exited()) worker.exited = record.exited();
  worker.failed_serial = record.failed_serial();
  if (record.has_failed()) worker.failed = record.failed();
  if (record.has_peer_lost()) worker.peer_lost = record.peer_lost();
  worker.lost_peer = record.lost_peer();
  worker.verdict_serial = record.verdict_serial();
  worker.verdict = record.verdict();
  worker.fault = record.fault();
  worker.node_lost = record.node_lost();
  worker.refused = record.refused();
  worker.end_unknown = record.end_unknown();
  worker.other_data = record.other_data();
  worker.other_build = record.other_build();
  // 0 is also what a row says that was written before it was known.
  if (record.trained_before() > 0) worker.trained_before = record.trained_before();
  worker.since = now;
  if (worker.dead() || worker.failed || worker.verdict_serial != 0) worker.failed_at = now;
}

// Another host's clock may have been ahead of this one's.
void FromRecord(const OpenFaultRecord& record, absl::Time now, OpenFault& fault) {
  fault.number = record.number();
  fault.failed = std::min(FromProto(record.failed()), now);
  fault.began = std::min(FromProto(record.began()), now);
  fault.generation = record.generation();
  fault.next_generation = record.next_generation();
  fault.place = record.place();
  fault.to_next_step_ms = record.to_next_step_ms();
  fault.committed = record.committed();
  fault.steps_lost = record.steps_lost();
  fault.rendezvous_ms = record.rendezvous_ms();
  fault.restore_ms = record.restore_ms();
  // Of a version that does not write it: still to come if a step is.
  fault.replay_ms = fault.to_next_step_ms < 0 ? -1 : record.replay_ms();
}

}  // namespace

WorkerRecord ToRecord(const Slot& slot, int index) {
  WorkerRecord record;
  FillIn(slot, index, record);
  return record;
}

void FillIn(const Slot& slot, int index, WorkerRecord& record) {
  record.Clear();
  if (slot.worker) {
    FillIn(*slot.worker, record);
  } else {
    FillInVacancy(slot, index, record);
  }
  record.set_node_id(slot.node_id);
  record.set_local_rank(slot.local_rank);
  record.set_lives(slot.lives);
  record.set_unwanted(!slot.wanted);
  record.set_standby(slot.standby);
  record.set_relieves(slot.relieves + 1);
  record.set_returns(slot.returns);
  record.set_lent(slot.lent);
}

namespace {

// Of the second number: first the phase, then what else is of the worker, then what is of the
// place.
constexpr int64_t kPhaseBits = 7;
constexpr int kPlaceBegins = 9;

int64_t Flags(std::initializer_list<bool> flags) {
  int64_t bits = 0;
  for (const bool flag : flags) bits = 2 * bits + static_cast<int64_t>(flag);
  return bits;
}

int64_t PlaceBits(const Slot& slot) {
  const int64_t flags = Flags({slot.wanted, slot.standby, slot.returns, slot.lent, slot.vacant()});
  return (int64_t{slot.relieves + 1} << 32 | int64_t{slot.local_rank} << 5 | flags) << kPlaceBegins;
}

int64_t WorkerBits(const Worker& worker) {
  const int64_t flags = Flags({worker.last_heard != absl::InfinitePast(),
                               worker.finished.has_value(), worker.exited.has_value(),
                               worker.peer_lost.has_value(), worker.node_lost, worker.refused});
  return flags << 3 | static_cast<int64_t>(worker.phase);
}

}  // namespace

RowStamp StampOf(const Slot& slot) {
  RowStamp stamp;
  auto& numbers = stamp.numbers;
  numbers[0] = slot.lives;
  numbers[1] = PlaceBits(slot);
  if (slot.vacant()) {
    numbers[2] = slot.last_peak_rss_bytes;
    return stamp;
  }
  const Worker& worker = *slot.worker;
  numbers[1] |= WorkerBits(worker);
  numbers[2] = worker.pid;
  numbers[3] = worker.reports;
  numbers[4] = worker.died_serial;
  numbers[5] = worker.failed_serial;
  numbers[6] = worker.verdict_serial;
  numbers[7] = worker.fault;
  return stamp;
}

bool IsWishedAlike(const RowStamp& before, const RowStamp& now) {
  const auto serves = [](const RowStamp& stamp) {
    const int64_t phase = stamp.numbers[1] & kPhaseBits;
    return phase > 0 && phase < static_cast<int64_t>(Worker::Phase::kLeaving);
  };
  // The life, which has one node, and whether the place is vacant.
  return before.numbers[0] == now.numbers[0] &&
         before.numbers[1] >> kPlaceBegins == now.numbers[1] >> kPlaceBegins && serves(before) &&
         serves(now);
}

JobRecord ToRecord(const Job& job) {
  JobRecord record;
  record.set_job_id(job.id);
  record.set_submit_order(job.submit_order);
  record.set_run_dir(job.run_dir);
  record.set_state(job.state);
  // Why it waits follows from the others; it is not written each time that they change.
  if (job.state != PENDING) record.set_reason(job.reason);
  *record.mutable_submitted() = ToProto(job.submitted);
  if (job.started != absl::InfinitePast()) *record.mutable_started() = ToProto(job.started);
  if (job.ended != absl::InfinitePast()) *record.mutable_ended() = ToProto(job.ended);
  record.set_slots(static_cast<int>(job.slots.size()));
  record.set_generation_aborted(job.generation.aborted);
  record.set_abort_reason(job.generation.abort_reason);
  record.set_generations(job.generations);
  record.set_stepped(job.stepped);
  if (job.drain) record.set_drain(*job.drain);
  if (job.ending) {
    EndingRecord& ending = *record.mutable_ending();
    ending.set_target(job.ending->target);
    ending.set_reason(job.ending->reason);
    ending.set_exit_code(job.ending->exit_code);
    ending.set_decided(job.ending->decided);
    ending.set_kill(job.ending->kill);
    ending.set_kill_serial(job.ending->kill_serial);
    ending.set_note(job.ending->note);
  }
  record.set_suspected(job.suspected != absl::InfiniteFuture());
  record.set_restarts(job.restarts);
  record.set_restart_step(job.restart_step);
  for (const Fault& fault : job.faults) *record.add_faults() = fault;
  record.set_target_workers(job.target_workers);
  if (job.generation.regroup) record.set_regroup(*job.generation.regroup);
  for (const Worker& worker : job.former) *record.add_former() = ToRecord(worker);
  for (const OpenFault& fault : job.open_faults) *record.add_open_faults() = ToRecord(fault);
  record.set_fault_number(job.fault_number);
  record.set_first_cause(job.first_cause);
  for (const auto& [node_id, exclusion] : job.excluded) {
    ExcludedNode& excluded = *record.add_excluded();
    excluded.set_node_id(node_id);
    excluded.set_reason(exclusion.reason);
    excluded.set_times(exclusion.times);
    excluded.set_other_data(exclusion.other_data);
    if (exclusion.suspected) *excluded.mutable_suspected_until() = ToProto(exclusion.until);
  }
  for (const std::string& node_id : job.left_nodes) record.add_left_nodes(node_id);
  record.set_trained_seconds(job.trained_seconds);
  record.set_timed_out(job.timed_out);
  record.set_pauses(job.starts_again_at != absl::InfinitePast());
  if (job.checkpoint) *record.mutable_checkpoint() = *job.checkpoint;
  if (job.eval) *record.mutable_eval() = *job.eval;
  *record.mutable_queue() = ToQueueRecord(job);
  if (job.final()) {
    *record.mutable_result() = job.result;
    *record.mutable_progress() = job.progress;
  }
  return record;
}

void FromRecord(const WorkerRecord& record, Slot& slot, absl::Time now) {
  slot.node_id = record.node_id();
  slot.local_rank = record.local_rank();
  slot.lives = record.lives();
  slot.wanted = !record.unwanted();
  slot.standby = record.standby();
  slot.relieves = record.relieves() - 1;
  slot.returns = record.returns();
  slot.lent = record.lent();
  if (record.left() && record.has_exited()) {
    slot.last_peak_rss_bytes = record.exited().peak_rss_bytes();
  } else {
    FromRecord(record, slot.worker.emplace(), now);
  }
}

void FromRecord(const JobRecord& record, Job& job, absl::Time now) {
  job.id = record.job_id();
  job.submit_order = record.submit_order();
  job.run_dir = record.run_dir();
  job.state = record.state();
  job.reason = record.reason();
  job.submitted = FromProto(record.submitted());
  if (record.has_started()) job.started = FromProto(record.started());
  // The clock by which it was written may have been ahead of this one.
  if (!record.has_ended()) job.submitted = std::min(job.submitted, now);
  if (record.has_ended()) job.ended = std::min(FromProto(record.ended()), now);
  // Of an earlier version; else it is a row of its own.
  if (record.has_generation()) job.generation.message = record.generation();
  job.generation.aborted = record.generation_aborted();
  job.generation.abort_reason = record.abort_reason();
  job.generations = record.generations();
  job.stepped = record.stepped();
  if (record.has_drain()) job.drain = record.drain();
  job.left_nodes = {record.left_nodes().begin(), record.left_nodes().end()};
  if (record.has_ending()) {
    Ending& ending = job.ending.emplace();
    ending.target = record.ending().target();
    ending.reason = record.ending().reason();
    ending.exit_code = record.ending().exit_code();
    ending.decided = record.ending().decided();
    ending.kill = record.ending().kill();
    ending.kill_serial = record.ending().kill_serial();
    ending.note = record.ending().note();
  }
  if (record.suspected()) job.suspected = absl::InfinitePast();
  job.restarts = record.restarts();
  job.restart_step = record.restart_step();
  job.faults.assign(record.faults().begin(), record.faults().end());
  job.target_workers = record.target_workers();
  if (record.has_regroup()) job.generation.regroup = record.regroup();
  if (job.generation.aborted) job.generation.aborted_at = now;
  for (const WorkerRecord& former : record.former()) {
    FromRecord(former, job.former.emplace_back(), now);
  }
  for (const OpenFaultRecord& fault : record.open_faults()) {
    FromRecord(fault, now, job.open_faults.emplace_back());
  }
  job.fault_number = record.fault_number();
  job.first_cause = record.first_cause();
  // The node may be tried again at once, unless it is known for how long it was excluded.
  for (const ExcludedNode& excluded : record.excluded()) {
    const bool suspected = excluded.has_suspected_until();
    job.excluded[excluded.node_id()] = {excluded.reason(), excluded.times(),
                                        suspected ? FromProto(excluded.suspected_until()) : now,
                                        excluded.other_data(), suspected};
  }
  job.trained_seconds = record.trained_seconds();
  job.timed_out = record.timed_out();
  if (record.pauses()) job.starts_again_at = now;
  if (record.has_checkpoint()) job.checkpoint = record.checkpoint();
  if (record.has_eval()) job.eval = record.eval();
  job.result = record.result();
  job.progress = record.progress();
  FromQueueRecord(record.queue(), job);
  if (!record.has_ended()) EndFuture(job, now);
  if (!record.has_ended()) job.ready_since = std::min(job.ready_since, now);
}

void FillAllocation(const JobSpec& spec, Worker& worker) {
  if (worker.node_id.empty() || worker.allocation.cpus() > 0) return;
  worker.allocation = AllocationOf(spec, worker.device);
}

}  // namespace lockstep::coordinator
