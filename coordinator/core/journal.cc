// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/journal.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/core.h"
#include "coordinator/core/health.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/job_record.h"
#include "coordinator/core/node_record.h"
#include "coordinator/core/nodes.h"
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
std::string WorkerKeys(const std::string& id) { return absl::StrCat("worker/", id, "/"); }
std::string WorkerKey(const std::string& id, int slot) {
  return absl::StrCat(WorkerKeys(id), slot);
}
std::string NodeKey(const std::string& id) { return absl::StrCat("node/", id); }

// Returns whether it is another value.
bool WriteIfChanged(Context& context, std::string key, std::string value) {
  auto [row, fresh] = context.state.saved.try_emplace(key);
  if (!fresh && row->second == value) return false;
  row->second = value;
  context.effects.rows.push_back({std::move(key), std::move(value)});
  return true;
}

// It is large and changes seldom, so its bytes are kept.
void CollectGeneration(Context& context, Job& job) {
  GenerationState& generation = job.generation;
  if (generation.message.generation() == 0) return;
  if (generation.row.empty()) generation.row = Bytes(generation.message);
  std::string key = GenerationKey(job.id);
  const auto saved = context.state.saved.find(key);
  if (saved != context.state.saved.end() && saved->second == generation.row) return;
  WriteIfChanged(context, std::move(key), generation.row);
}

void CollectWorkers(Context& context, Job& job) {
  WorkerRecord record;
  const std::string keys = WorkerKeys(job.id);
  job.stamps.resize(job.slots.size());
  for (size_t i = 0; i < job.slots.size(); ++i) {
    Slot& slot = job.slots[i];
    const RowStamp stamp = StampOf(slot);
    if (slot.written && job.stamps[i] == stamp) continue;
    const bool wished_so = slot.written && IsWishedAlike(job.stamps[i], stamp);
    slot.written = true;
    job.stamps[i] = stamp;
    const int index = static_cast<int>(i);
    FillIn(slot, index, record);
    if (!WriteIfChanged(context, absl::StrCat(keys, index), Bytes(record))) continue;
    if (slot.worker && !wished_so) context.wish_nodes.push_back(slot.worker->node_id);
  }
}

// Marks what is in no row of its own: who is a member of the newest generation.
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

// What the rows say of a job's places. They are made when all rows are known, as many as have one:
// a damaged number makes no memory.
struct Places {
  int count = 0;  // as the job's row says
  std::map<int, const Row*> rows;
};

// Takes one row in; those of workers are noted. False: it cannot be read.
bool RestoreRow(const Row& row, absl::Time now, State& state,
                std::map<std::string, Places>& places) {
  const size_t slash = row.key.find('/');
  if (slash == std::string::npos) return false;
  const std::string kind = row.key.substr(0, slash);
  const std::string id = row.key.substr(slash + 1);
  if (kind == "job") {
    JobRecord record;
    if (!record.ParseFromString(row.value) || record.job_id() != id) return false;
    if (record.slots() < 0) return false;
    places[id].count = record.slots();
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
    const std::string job_id = id.substr(0, id.find('/'));
    int index = 0;
    if (!absl::SimpleAtoi(id.substr(std::min(id.size(), job_id.size() + 1)), &index)) return false;
    if (index < 0 || row.key != WorkerKey(job_id, index)) return false;
    places[job_id].rows[index] = &row;
    return true;
  }
  NodeRecord record;
  if (kind != "node" || !record.ParseFromString(row.value) || record.node_id() != id) return false;
  Node& node = state.nodes[id];
  FromRecord(record, state.options.trust, now, node);
  SetDrain(state, node, std::move(node.drain));
  return true;
}

absl::Status Damaged(const std::string& key) {
  return absl::DataLossError(
      absl::StrCat("row '", key, "' of the journal is damaged or of another version"));
}

absl::Status RestorePlaces(const std::string& id, const Places& places, absl::Time now, Job& job) {
  const size_t count = std::max(static_cast<size_t>(places.count), places.rows.size());
  // Earlier versions let a job have more, and wrote a row of each.
  if (count > kMaxWorkers && count > places.rows.size()) return Damaged(JobKey(id));
  job.slots.reserve(places.rows.size());
  const bool of_earlier = job.left_nodes.empty();
  for (size_t i = 0; i < count; ++i) {
    const auto row = places.rows.find(static_cast<int>(i));
    if (row == places.rows.end()) {
      return absl::DataLossError(absl::StrCat("the journal lacks worker ", i, " of job ", id));
    }
    WorkerRecord record;
    if (!record.ParseFromString(row->second->value) || record.slot() != row->first) {
      return Damaged(row->second->key);
    }
    Slot& slot = job.slots.emplace_back();
    FromRecord(record, slot, now);
    // An earlier version noted no nodes that were left: a place that is vacant says where it was.
    if (of_earlier && slot.vacant() && !slot.node_id.empty()) job.left_nodes.insert(slot.node_id);
  }
  return absl::OkStatus();
}

// A job that has, or will have, more workers than there may be, as earlier versions let it, ends;
// all others go on.
void EndTooLarge(State& state, absl::Time now, Job& job) {
  const int workers = std::max(static_cast<int>(job.slots.size()), job.wanted_workers());
  if (job.final() || workers <= kMaxWorkers) return;
  if (job.ending && job.ending->target == PENDING) job.ending.reset();
  job.preempted.reset();
  Context context(state, now, state.unsettled.effects);
  BeginEnding(context, job, FAILED,
              absl::StrCat("it has ", workers, " workers, and a job has at most ", kMaxWorkers),
              /*exit_code=*/1, /*kill=*/true);
}

// A job whose submission could not be written was never accepted.
void Withdraw(State& state, Effects& effects, const std::string& id) {
  RemoveJob(state, id);
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
  std::string bytes(message.ByteSizeLong(), '\0');
  google::protobuf::io::ArrayOutputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeWithCachedSizes(&coded);
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
      if (!slot.written || job.stamps[i] != StampOf(slot)) continue;
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
    for (Slot& slot : state.jobs.at(id).slots) slot.written = false;
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
    state.nodes[agent->second].sent.reset();
    state.owed_nodes.insert(agent->second);
  }
  for (const ToWorker& message : effects.to_workers) {
    const auto known = state.worker_sessions.find(message.session);
    if (message.close || known == state.worker_sessions.end()) continue;
    Job& job = state.jobs.at(known->second.first);
    if (Worker* worker = FindWorker(job, known->second.second)) worker->sent = Worker::Sent{};
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
  std::map<std::string, Places> places;
  for (const Row& row : rows) {
    if (!RestoreRow(row, now, state, places)) return Damaged(row.key);
    state.saved[row.key] = row.value;
  }
  for (const auto& [id, of_job] : places) {
    const auto job = state.jobs.find(id);
    if (job == state.jobs.end()) {
      return absl::DataLossError(absl::StrCat("the journal lacks job ", id));
    }
    LS_RETURN_IF_ERROR(RestorePlaces(id, of_job, now, job->second));
  }
  for (auto& [id, job] : state.jobs) {
    const bool has_generation = job.generations == 0 || job.generation.message.generation() != 0;
    if (state.saved.count(JobKey(id)) == 0 || state.saved.count(RequestKey(id)) == 0 ||
        !has_generation) {
      return absl::DataLossError(absl::StrCat("the journal lacks a part of job ", id));
    }
    job.ask = AskOf(job);
    // The clock by which it was written may have been ahead of this one.
    for (auto& [node_id, exclusion] : job.excluded) {
      exclusion.until = std::min(exclusion.until, now + options.exclude_most);
    }
    SetCheck(state, job, absl::InfinitePast());
    NoteBegun(state, job);
    if (std::string name = RequestName(job.request); !name.empty()) {
      state.job_of_request[std::move(name)] = id;
    }
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
      if (job.slots[i].vacant()) continue;
      Worker& worker = *job.slots[i].worker;
      FillAllocation(job.spec(), worker);
      state.serial =
          std::max({state.serial, worker.died_serial, worker.failed_serial, worker.verdict_serial});
    }
  }
  const absl::Time newest = NewestTime(state, now);
  if (newest != absl::InfinitePast()) NoteLeap(state, now - newest);
  for (auto& [id, job] : state.jobs) SkipUnseen(job, now);
  for (auto& [id, job] : state.jobs) EndTooLarge(state, now, job);
  // Nobody is judged before everybody had the time to connect again.
  ForgiveTime(state, now + options.reconnect);
  state.last_step = now;
  return state;
}

}  // namespace lockstep::coordinator
