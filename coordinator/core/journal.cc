// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/journal.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/core.h"
#include "coordinator/core/health.h"
#include "coordinator/core/node_record.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_record.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/tokens.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

// After a failed write the next one is tried so much later.
constexpr absl::Duration kSaveAgain = absl::Milliseconds(100);

std::string JobKey(const std::string& id) { return absl::StrCat("job/", id); }
std::string GenerationKey(const std::string& id) { return absl::StrCat("generation/", id); }
std::string RequestKey(const std::string& id) { return absl::StrCat("request/", id); }
std::string WorkerKey(const std::string& id, int slot) {
  return absl::StrCat("worker/", id, "/", slot);
}
std::string NodeKey(const std::string& id) { return absl::StrCat("node/", id); }

WorkerRecord ToRecord(const Worker& worker) {
  WorkerRecord record;
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
  record.set_lost_peer(worker.lost_peer);
  record.set_verdict_serial(worker.verdict_serial);
  record.set_verdict(worker.verdict);
  record.set_left(worker.leaving());
  record.set_fault(worker.fault);
  record.set_node_lost(worker.node_lost);
  record.set_refused(worker.refused);
  *record.mutable_allocation() = worker.allocation;
  return record;
}

// The row of a vacant place is that of one who left it and has exited.
WorkerRecord ToVacancy(const Slot& slot, int index) {
  WorkerRecord record;
  record.set_slot(index);
  record.set_left(true);
  record.mutable_exited()->set_peak_rss_bytes(slot.last_peak_rss_bytes);
  return record;
}

WorkerRecord ToRecord(const Slot& slot, int index) {
  WorkerRecord record = slot.worker ? ToRecord(*slot.worker) : ToVacancy(slot, index);
  record.set_node_id(slot.node_id);
  record.set_local_rank(slot.local_rank);
  record.set_lives(slot.lives);
  record.set_unwanted(!slot.wanted);
  record.set_standby(slot.standby);
  record.set_relieves(slot.relieves + 1);
  record.set_returns(slot.returns);
  record.set_lent(slot.lent);
  return record;
}

// Everything that ToRecord above reads and that changes within a life: what a worker has said of
// its work and its end by the number of its messages, what its agent and the core said by their
// serials, where it was put by its phase.
RowStamp StampOf(const Slot& slot) {
  const auto flags = [](std::initializer_list<bool> all) {
    int64_t bits = 0;
    for (const bool flag : all) bits = 2 * bits + static_cast<int64_t>(flag);
    return bits;
  };
  RowStamp stamp;
  stamp.node_id = slot.node_id;
  std::array<int64_t, 13>& numbers = stamp.numbers;
  numbers[0] = slot.lives;
  numbers[1] = slot.local_rank;
  numbers[2] = slot.relieves;
  numbers[3] = flags({slot.wanted, slot.standby, slot.returns, slot.vacant()});
  if (slot.vacant()) {
    numbers[4] = slot.last_peak_rss_bytes;
    return stamp;
  }
  const Worker& worker = *slot.worker;
  numbers[4] = static_cast<int64_t>(worker.phase);
  numbers[5] = worker.pid;
  numbers[6] = worker.said;
  numbers[7] = worker.died_serial;
  numbers[8] = worker.died_order;
  numbers[9] = worker.failed_serial;
  numbers[10] = worker.verdict_serial;
  numbers[11] = worker.fault;
  numbers[12] = flags({worker.last_heard != absl::InfinitePast(), worker.finished.has_value(),
                       worker.exited.has_value(), worker.peer_lost.has_value(), worker.node_lost,
                       worker.refused});
  return stamp;
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
  return record;
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
  }
  record.set_timed_out(job.timed_out);
  if (job.checkpoint) *record.mutable_checkpoint() = *job.checkpoint;
  if (job.eval) *record.mutable_eval() = *job.eval;
  *record.mutable_queue() = ToQueueRecord(job);
  if (job.final()) {
    *record.mutable_result() = job.result;
    *record.mutable_progress() = job.progress;
  }
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
  worker.device = record.device();
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
  worker.since = now;
  if (worker.dead() || worker.failed || worker.verdict_serial != 0) worker.failed_at = now;
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

void FromRecord(const OpenFaultRecord& record, OpenFault& fault) {
  fault.number = record.number();
  fault.failed = FromProto(record.failed());
  fault.began = FromProto(record.began());
  fault.generation = record.generation();
  fault.next_generation = record.next_generation();
  fault.place = record.place();
  fault.to_next_step_ms = record.to_next_step_ms();
  fault.committed = record.committed();
  fault.steps_lost = record.steps_lost();
  fault.rendezvous_ms = record.rendezvous_ms();
}

// The request is there already or comes with its own row.
void FromRecord(const JobRecord& record, Job& job, absl::Time now) {
  job.id = record.job_id();
  job.submit_order = record.submit_order();
  job.run_dir = record.run_dir();
  job.state = record.state();
  job.reason = record.reason();
  job.submitted = FromProto(record.submitted());
  if (record.has_started()) job.started = FromProto(record.started());
  if (record.has_ended()) job.ended = FromProto(record.ended());
  job.slots.resize(std::max<size_t>(job.slots.size(), record.slots()));
  // Of an earlier version; else it is a row of its own.
  if (record.has_generation()) job.generation.message = record.generation();
  job.generation.aborted = record.generation_aborted();
  job.generation.abort_reason = record.abort_reason();
  job.generations = record.generations();
  job.stepped = record.stepped();
  if (record.has_drain()) job.drain = record.drain();
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
    FromRecord(fault, job.open_faults.emplace_back());
  }
  job.fault_number = record.fault_number();
  job.first_cause = record.first_cause();
  // The node may be tried again at once: for how long it was excluded is not known any more.
  for (const ExcludedNode& excluded : record.excluded()) {
    job.excluded[excluded.node_id()] = {excluded.reason(), excluded.times(), now};
  }
  job.timed_out = record.timed_out();
  if (record.has_checkpoint()) job.checkpoint = record.checkpoint();
  if (record.has_eval()) job.eval = record.eval();
  job.result = record.result();
  job.progress = record.progress();
  FromQueueRecord(record.queue(), job);
  job.next_check = absl::InfinitePast();
}

// A row of a version that did not write down what a worker has of its node: as it was dealt out.
void FillAllocation(const JobSpec& spec, Worker& worker) {
  if (worker.node_id.empty() || worker.allocation.cpus() > 0) return;
  worker.allocation = AllocationOf(spec, worker.device);
}

// Returns whether it is another value.
bool WriteIfChanged(Context& context, const std::string& key, const std::string& value) {
  auto [row, fresh] = context.state.saved.try_emplace(key);
  if (!fresh && row->second == value) return false;
  row->second = value;
  context.effects.rows.push_back({key, value});
  return true;
}

// It is large and changes seldom, so its bytes are kept.
void CollectGeneration(Context& context, Job& job) {
  GenerationState& generation = job.generation;
  if (generation.message.generation() == 0) return;
  if (generation.row.empty()) generation.row = Bytes(generation.message);
  WriteIfChanged(context, GenerationKey(job.id), generation.row);
}

void CollectWorkers(Context& context, Job& job) {
  for (size_t i = 0; i < job.slots.size(); ++i) {
    Slot& slot = job.slots[i];
    RowStamp stamp = StampOf(slot);
    if (slot.written == stamp) continue;
    slot.written = std::move(stamp);
    const int index = static_cast<int>(i);
    if (!WriteIfChanged(context, WorkerKey(job.id, index), Bytes(ToRecord(slot, index)))) continue;
    if (slot.worker) context.wish_nodes.insert(slot.worker->node_id);
  }
}

// What is in no row of its own: who is a member of the newest generation.
void MarkMembers(Job& job) {
  const int64_t number = job.generation.message.generation();
  for (const Member& member : job.generation.message.members()) {
    if (Worker* worker = FindWorker(job, member.incarnation())) worker->member_of = number;
    if (Worker* worker = FindFormer(job, member.incarnation())) worker->member_of = number;
  }
}

// Where its workers are.
void MarkPlaces(State& state, const Job& job) {
  const auto mark = [&](const std::string& node_id, int place) {
    const auto node = state.nodes.find(node_id);
    if (node != state.nodes.end()) node->second.places.emplace(job.id, place);
  };
  for (size_t i = 0; i < job.slots.size(); ++i) {
    const Slot& slot = job.slots[i];
    mark(slot.node_id, static_cast<int>(i));
    if (slot.worker) mark(slot.worker->node_id, static_cast<int>(i));
  }
  for (const Worker& worker : job.former) mark(worker.node_id, worker.slot);
}

// Takes one row in. False: it cannot be read.
bool RestoreRow(const Row& row, absl::Time now, State& state) {
  const size_t slash = row.key.find('/');
  if (slash == std::string::npos) return false;
  const std::string kind = row.key.substr(0, slash);
  const std::string id = row.key.substr(slash + 1);
  if (kind == "job") {
    JobRecord record;
    if (!record.ParseFromString(row.value) || record.job_id() != id) return false;
    FromRecord(record, state.jobs[id], now);
    return true;
  }
  if (kind == "token") return RestoreToken(id, row.value, state);
  if (kind == "usage") return RestoreUsage(row.value, now, state);
  if (kind == "request") return state.jobs[id].request.ParseFromString(row.value);
  if (kind == "generation") {
    return state.jobs[id].generation.message.ParseFromString(row.value);
  }
  if (kind == "worker") {
    WorkerRecord record;
    if (!record.ParseFromString(row.value) || record.slot() < 0) return false;
    const size_t index = static_cast<size_t>(record.slot());
    const std::string job_id = id.substr(0, id.find('/'));
    if (row.key != WorkerKey(job_id, record.slot()) || index >= static_cast<size_t>(kMaxWorkers))
      return false;
    std::vector<Slot>& slots = state.jobs[job_id].slots;
    slots.resize(std::max(slots.size(), index + 1));
    FromRecord(record, slots[index], now);
    return true;
  }
  NodeRecord record;
  if (kind != "node" || !record.ParseFromString(row.value) || record.node_id() != id) return false;
  FromRecord(record, state.nodes[id]);
  return true;
}

// A job whose submission could not be written was never accepted.
void Withdraw(State& state, Effects& effects, const std::string& id) {
  state.jobs.erase(id);
  state.owed_jobs.erase(id);
  state.unsettled.jobs.erase(id);
  for (auto& [node_id, node] : state.nodes) {
    if (node.private_job != id) continue;
    node.private_job.clear();
    state.owed_nodes.insert(node_id);
  }
  const auto of_job = [&](const Append& append) { return append.job_id == id; };
  std::erase_if(effects.events, of_job);
  std::erase_if(state.unsettled.effects.events, of_job);
}

}  // namespace

std::string Bytes(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

void CollectRows(Context& context, const std::set<std::string>& jobs) {
  for (const std::string& id : context.changed_nodes) {
    WriteIfChanged(context, NodeKey(id), Bytes(ToRecord(context.state.nodes.at(id))));
  }
  for (const std::string& id : jobs) {
    Job& job = context.state.jobs.at(id);
    const std::string request_key = RequestKey(id);
    const bool is_counted = !job.spec().resources().nproc_by().empty();
    if (is_counted || context.state.saved.count(request_key) == 0) {
      WriteIfChanged(context, request_key, Bytes(job.request));
    }
    WriteIfChanged(context, JobKey(id), Bytes(ToRecord(job)));
    CollectGeneration(context, job);
    CollectWorkers(context, job);
  }
  for (const DayOfUser& day : context.state.unsettled.usage) {
    WriteIfChanged(context, UsageKey(day), UsageRow(context.state, day));
  }
}

void EraseJobRows(Context& context, const Job& job) {
  EraseRow(context, RequestKey(job.id));
  if (context.state.saved.contains(GenerationKey(job.id))) EraseRow(context, GenerationKey(job.id));
  EraseRow(context, JobKey(job.id));
  EraseWorkerRows(context, job);
}

void EraseWorkerRows(Context& context, const Job& job) {
  for (size_t slot = 0; slot < job.slots.size(); ++slot) {
    EraseRow(context, WorkerKey(job.id, static_cast<int>(slot)));
  }
}

void EraseRow(Context& context, const std::string& key) {
  context.state.saved.erase(key);
  context.effects.rows.push_back({key, "", /*erased=*/true});
}

void EraseNodeRow(Context& context, const std::string& node_id) {
  EraseRow(context, NodeKey(node_id));
}

std::string FindStaleRow(const State& state) {
  for (const auto& [id, job] : state.jobs) {
    if (state.owed_jobs.count(id) != 0) continue;
    for (size_t i = 0; i < job.slots.size(); ++i) {
      const Slot& slot = job.slots[i];
      if (slot.written != StampOf(slot)) continue;
      std::string key = WorkerKey(id, static_cast<int>(i));
      const auto row = state.saved.find(key);
      const bool right =
          row != state.saved.end() && row->second == Bytes(ToRecord(slot, static_cast<int>(i)));
      if (!right) return key;
    }
  }
  return "";
}

void TouchOwed(Context& context) {
  State& state = context.state;
  for (const std::string& key : state.owed_erasures) {
    if (state.saved.count(key) == 0) EraseRow(context, key);  // else it is there anew
  }
  state.owed_erasures.clear();
  WriteOwedTokens(context);
  state.unsettled.usage.merge(state.owed_usage);
  state.owed_usage.clear();
  if (state.owed_jobs.empty() && state.owed_nodes.empty()) return;
  context.schedule = true;
  state.unsettled.all_wishes = true;
  for (const std::string& id : state.owed_jobs) {
    for (Slot& slot : state.jobs.at(id).slots) slot.written.reset();
  }
  context.touched_jobs.merge(state.owed_jobs);
  context.changed_nodes.merge(state.owed_nodes);
  state.owed_jobs.clear();
  state.owed_nodes.clear();
}

void SaveFailed(State& state, Effects& effects, absl::Time now) {
  for (const Row& row : effects.rows) {
    if (row.erased) {
      state.owed_erasures.insert(row.key);
      continue;
    }
    state.saved.erase(row.key);
    const size_t slash = row.key.find('/');
    const std::string id = row.key.substr(slash + 1);
    const std::string job_id = id.substr(0, id.find('/'));
    if (row.key.compare(0, slash, "usage") == 0) {
      for (const auto& [day, use] : state.usage) {
        if (UsageKey(day) == row.key) state.owed_usage.insert(day);
      }
      continue;
    }
    if (row.key.compare(0, slash, "token") == 0) {
      state.owed_tokens.insert(id);
      continue;
    }
    // What was forgotten by a later one of these steps is owed nothing more.
    if (row.key.compare(0, slash, "node") == 0) {
      if (state.nodes.count(id) != 0) state.owed_nodes.insert(id);
    } else if (state.jobs.count(job_id) != 0) {
      state.owed_jobs.insert(job_id);
    }
  }
  effects.rows.clear();
  for (const ToAgent& message : effects.to_agents) {
    const auto agent = state.agent_sessions.find(message.session);
    if (!message.command.has_desired() || agent == state.agent_sessions.end()) continue;
    state.nodes[agent->second].told.reset();
    state.owed_nodes.insert(agent->second);
  }
  for (const ToWorker& message : effects.to_workers) {
    const auto known = state.worker_sessions.find(message.session);
    if (message.close || known == state.worker_sessions.end()) continue;
    Job& job = state.jobs.at(known->second.first);
    if (Worker* worker = FindWorker(job, known->second.second)) worker->told = Worker::Told{};
    state.owed_jobs.insert(job.id);
  }
  std::erase_if(effects.to_agents, [](const ToAgent& m) { return m.command.has_desired(); });
  // A verdict on a checkpoint is an answer, which nothing derives again.
  std::erase_if(effects.to_workers,
                [](const ToWorker& m) { return !m.close && !m.command.has_checkpoint(); });
  for (const std::string& id : effects.new_jobs) Withdraw(state, effects, id);
  effects.new_jobs.clear();
  effects.wake_at = std::min(effects.wake_at, now + kSaveAgain);
}

absl::StatusOr<State> Restore(const std::vector<Row>& rows, const Options& options,
                              absl::Time now) {
  State state;
  state.options = options;
  for (const Row& row : rows) {
    if (!RestoreRow(row, now, state)) {
      return absl::DataLossError(absl::StrCat("row '", row.key,
                                              "' of the journal is damaged or of "
                                              "another version"));
    }
    state.saved[row.key] = row.value;
  }
  for (auto& [id, job] : state.jobs) {
    const bool has_generation = job.generations == 0 || job.generation.message.generation() != 0;
    if (state.saved.count(JobKey(id)) == 0 || state.saved.count(RequestKey(id)) == 0 ||
        !has_generation) {
      return absl::DataLossError(absl::StrCat("the journal lacks a part of job ", id));
    }
    job.ask = AskOf(job);
    MarkMembers(job);
    MarkPlaces(state, job);
    state.submits = std::max(state.submits, job.submit_order);
    if (job.state == PENDING) state.owed_jobs.insert(id);  // why it waits may be another reason now
    if (job.ending) state.serial = std::max(state.serial, job.ending->kill_serial);
    for (Worker& worker : job.former) {
      FillAllocation(job.spec(), worker);
      state.serial =
          std::max({state.serial, worker.died_serial, worker.failed_serial, worker.verdict_serial});
    }
    for (size_t i = 0; i < job.slots.size(); ++i) {
      if (state.saved.count(WorkerKey(id, static_cast<int>(i))) == 0) {
        return absl::DataLossError(absl::StrCat("the journal lacks worker ", i, " of job ", id));
      }
      if (job.slots[i].vacant()) continue;
      Worker& worker = *job.slots[i].worker;
      FillAllocation(job.spec(), worker);
      state.serial =
          std::max({state.serial, worker.died_serial, worker.failed_serial, worker.verdict_serial});
    }
  }
  // Nobody is judged before everybody had the time to connect again.
  ForgiveTime(state, now + options.reconnect);
  state.last_step = now;
  return state;
}

}  // namespace lockstep::coordinator
