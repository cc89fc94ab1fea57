// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/world.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {
namespace {

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  proto->set_seconds(absl::ToInt64Seconds(duration));
  proto->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(duration - absl::Seconds(absl::ToInt64Seconds(duration)))));
}

absl::Duration ParseTime(const std::string& text) {
  absl::Duration duration;
  LS_CHECK(absl::ParseDuration(text, &duration)) << "no duration: '" << text << "'";
  return duration;
}

// Returns what the process of "j.2" has for a pid unless a command says otherwise.
int64_t Pid(const std::string& worker) {
  int64_t slot = 0;
  const std::vector<std::string> parts = absl::StrSplit(worker, '.');
  LS_CHECK(parts.size() >= 2 && absl::SimpleAtoi(parts[1], &slot)) << worker;
  return 100 + slot;
}

}  // namespace

std::vector<std::string> World::Do(const Command& command) {
  lines_.clear();
  const std::string& verb = command.verb();
  if (verb == "submit") {
    Submit(command);
  } else if (verb == "cancel") {
    Take(CancelRequested{command.word(0), command.flag("kill")});
  } else if (verb == "scale") {
    Take(ScaleRequested{command.word(0), static_cast<int>(command.number("workers"))});
  } else if (verb == "drain") {
    Take(DrainRequested{command.word(0), command.text("reason"), command.text("user", "ann")});
  } else if (verb == "undrain") {
    Take(UndrainRequested{command.word(0)});
  } else if (verb == "hold" || verb == "release") {
    Take(HoldRequested{command.word(0), verb == "release"});
  } else if (verb == "quota") {
    SetQuota(command);
  } else if (verb == "usage") {
    Usage(command);
  } else if (verb == "health") {
    AgentMessage message;
    message.mutable_heartbeat()->mutable_health()->set_problem(command.text("problem"));
    Take(AgentSaid{sessions_[command.word(0)], message});
  } else if (verb == "agent") {
    Agent(command);
  } else if (verb == "agent-gone") {
    Take(AgentGone{sessions_[command.word(0)]});
  } else if (verb == "agent-leaves") {
    AgentMessage message;
    message.mutable_stopping()->mutable_grace()->set_seconds(command.number("grace", 0));
    Take(AgentSaid{sessions_[command.word(0)], message});
  } else if (verb == "worker-gone") {
    const SessionId newest = sessions_[command.word(0)];
    Take(WorkerGone{command.number("session", newest)});
  } else if (verb == "tick") {
    Tick(command);
  } else if (verb == "pause") {
    now_ += ParseTime(command.word(0));
    Take(coordinator::Tick{});
  } else if (verb == "held") {
    Take(Held{});
  } else if (verb == "released") {
    Take(Released{});
  } else if (verb == "up") {
    Up(command.word(0));
  } else if (verb == "restart") {
    Restart();
  } else if (verb == "keep") {
    state_.options.keep_ended = static_cast<size_t>(command.number("ended"));
    state_.options.keep_ended_for = command.duration("for", absl::Minutes(5));
    state_.options.keep_node = command.duration("node", absl::Hours(1));
  } else if (verb == "describe") {
    Describe(command);
  } else if (verb == "show") {
    lines_ = Overview(state_, now_);
  } else if (!AgentReport(command) && !WorkerReport(command)) {
    lines_.push_back(absl::StrCat("unknown command '", verb, "'"));
  }
  if (lines_.empty()) lines_.push_back("nothing");
  return lines_;
}

void World::SetQuota(const Command& command) {
  state_.options.fair_share_half_life =
      command.duration("half", state_.options.fair_share_half_life);
  Quota& quota =
      command.word(0).empty() ? state_.options.quota : state_.options.quotas[command.word(0)];
  quota.slots = static_cast<int>(command.number("slots"));
  quota.gpus = static_cast<int>(command.number("gpus"));
  quota.jobs = static_cast<int>(command.number("jobs"));
}

void World::Usage(const Command& command) {
  GetUsageRequest request;
  request.set_user(command.word(0));
  const GetUsageResponse response = GetUsage(state_, request, now_);
  for (const UserUsage& user : response.users()) {
    lines_.push_back(absl::StrCat(user.user(), ": ", user.slot_seconds(), " slot-seconds, ",
                                  user.gpu_seconds(), " GPU-seconds, ", user.ended_jobs(),
                                  " ended, ", user.running_jobs(), " running with ", user.slots(),
                                  " slots, ", user.waiting_jobs(), " waiting"));
  }
}

void World::DescribeQueue(const JobStatus& status) {
  if (status.state() != PENDING) return;
  const QueueStatus& queue = status.queue();
  std::string text = absl::StrCat("waits: ", status.reason(), "; ", queue.ahead(), " ahead; ");
  if (queue.has_starts()) {
    absl::StrAppend(&text, "starts in ", absl::FormatDuration(FromProto(queue.starts()) - now_));
  } else {
    absl::StrAppend(&text, "start not known: ", queue.no_estimate());
  }
  lines_.push_back(text);
}

void World::Describe(const Command& command) {
  const auto response = DescribeJob(state_, command.word(0), now_);
  if (!response.ok()) return lines_.push_back(response.status().ToString());
  DescribeQueue(response->status());
  if (!response->status().stall().empty()) {
    lines_.push_back(absl::StrCat("stands: ", response->status().stall()));
  }
  if (!response->status().straggler().empty()) {
    lines_.push_back(absl::StrCat("slowed by: ", response->status().straggler()));
  }
  if (!response->status().moves().empty()) {
    lines_.push_back(absl::StrCat("moves: ", response->status().moves()));
  }
  if (command.flag("all")) {
    for (const MemberStatus& member : response->members()) {
      lines_.push_back(absl::StrCat("rank ", member.rank(), " on ", member.node_id(), ": ",
                                    member.allocation().cpus(), " cpus, ",
                                    member.allocation().memory(), " bytes, gpus [",
                                    absl::StrJoin(member.allocation().gpus(), " "), "]"));
    }
  }
  for (const Fault& fault : response->status().result().faults()) {
    lines_.push_back(absl::StrCat("fault: rank ", fault.rank(), ", ", fault.cause(), ", victims [",
                                  absl::StrJoin(fault.victims(), " "), "]"));
  }
}

void World::Take(const Event& event) {
  const Effects effects = Step(state_, event, now_);
  wake_at_ = effects.wake_at;
  for (const Row& row : effects.rows) {
    if (row.erased) {
      rows_.erase(row.key);
    } else {
      rows_[row.key] = row.value;
    }
  }
  if (!effects.reply.ok()) lines_.push_back(absl::StrCat("refused: ", effects.reply.ToString()));
  for (std::string& line : ToText(effects, names_)) lines_.push_back(std::move(line));
  CheckRestored();
}

// Whatever has happened: a coordinator that goes on from the rows knows the same of jobs and nodes.
// AddressSanitizer, for which that takes most of the time, sees it now and then.
void World::CheckRestored() {
#ifdef LOCKSTEP_SANITIZE_ADDRESS
  static int64_t steps = 0;
  if (++steps % 8 != 0) return;
#endif
  const absl::StatusOr<State> restored = Rows();
  if (!restored.ok()) {
    lines_.push_back(absl::StrCat("cannot be restored: ", restored.status().ToString()));
    return;
  }
  State connected = *restored;
  // What peers say again when they connect.
  for (auto& [id, node] : connected.nodes) {
    node.session = state_.nodes[id].session;
    node.last_contact = state_.nodes[id].last_contact;
    node.problem = state_.nodes[id].problem;
    node.stopping = state_.nodes[id].stopping;
  }
  for (auto& [id, job] : connected.jobs) {
    const std::vector<Slot>& slots = state_.jobs[id].slots;
    for (size_t i = 0; i < std::min(slots.size(), job.slots.size()); ++i) {
      if (job.slots[i].worker && slots[i].worker) {
        job.slots[i].worker->ready = slots[i].worker->ready;
      }
    }
  }
  const Lines now = Overview(state_, now_), then = Overview(connected, now_);
  for (size_t i = 0; i < std::max(now.size(), then.size()); ++i) {
    const std::string is = i < now.size() ? now[i] : "", was = i < then.size() ? then[i] : "";
    if (is != was) lines_.push_back(absl::StrCat("restored as: ", was, "; not: ", is));
  }
}

absl::StatusOr<State> World::Rows() const {
  std::vector<Row> rows;
  for (const auto& [key, value] : rows_) rows.push_back({key, value});
  return coordinator::Restore(rows, state_.options, now_);
}

void World::Submit(const Command& command) {
  Submitted event;
  event.job_id = command.word(0);
  event.request.set_request_id(command.text("request"));
  JobSpec& spec = *event.request.mutable_spec();
  spec.set_name(command.text("name", "mlp"));
  event.request.set_submit_dir(command.text("dir"));
  if (command.has("limit")) {
    SetDuration(command.duration("limit", absl::ZeroDuration()), spec.mutable_time_limit());
  }
  spec.set_priority(static_cast<int>(command.number("priority")));
  event.request.set_user(command.text("user"));
  event.request.set_hold(command.flag("hold"));
  for (const std::string& id : command.list("after")) event.request.add_after(id);
  for (const std::string& id : command.list("after_any")) event.request.add_after_any(id);
  if (command.has("index")) {
    ArrayElement& array = *event.request.mutable_array();
    array.set_id(command.text("array"));
    array.set_index(static_cast<int>(command.number("index")));
    array.set_at_once(static_cast<int>(command.number("at_once")));
  }
  if (command.has("grace")) {
    SetDuration(command.duration("grace", absl::ZeroDuration()),
                spec.mutable_preemption()->mutable_grace());
  }
  for (const std::string& label : command.list("labels")) {
    const std::vector<std::string> parts = absl::StrSplit(label, ':');
    (*spec.mutable_resources()->mutable_labels())[parts.at(0)] = parts.at(1);
  }
  spec.mutable_resources()->set_nodes(static_cast<int>(command.number("nodes", 1)));
  spec.mutable_resources()->set_nproc_per_node(static_cast<int>(command.number("nproc", 1)));
  for (const std::string& ranks : command.list("ranks")) {
    int count = 0;
    LS_CHECK(absl::SimpleAtoi(ranks, &count)) << ranks;
    Resources& resources = *spec.mutable_resources();
    resources.add_ranks_per_node(count);
    resources.set_nodes(resources.ranks_per_node_size());
    resources.set_nproc_per_node(std::max(resources.nproc_per_node(), count));
  }
  spec.mutable_resources()->set_nproc_by(command.text("by"));
  spec.mutable_resources()->set_rank0_node(command.text("rank0"));
  spec.mutable_resources()->set_device(command.text("device", "auto"));
  if (command.flag("command")) {
    spec.mutable_run()->add_command("true");
  } else {
    spec.mutable_train()->set_shards(static_cast<int>(command.number("shards", 8)));
  }
  spec.mutable_resources()->set_standby(static_cast<int>(command.number("standby")));
  if (command.flag("mixed")) spec.mutable_train()->set_reproducible(false);
  if (command.has("resume")) {
    spec.mutable_checkpoint()->set_dir("saved");
    spec.mutable_checkpoint()->set_resume(command.text("resume"));
  }
  spec.mutable_restart()->set_max_restarts(static_cast<int>(command.number("restarts")));
  spec.mutable_elastic()->set_min_workers(static_cast<int>(command.number("min")));
  spec.mutable_elastic()->set_max_workers(static_cast<int>(command.number("max")));
  SetDuration(command.duration("detect", absl::Seconds(5)), spec.mutable_failure_detection());
  SetDuration(command.duration("start", absl::Minutes(10)), spec.mutable_start_timeout());
  Take(event);
}

// The session of a hello: a new one, unless the command names one.
SessionId World::Connect(const Command& command) {
  if (command.has("session")) return command.number("session");
  const std::string who = command.word(0);
  ++last_session_;
  names_[last_session_] = absl::StrCat(who, "#", last_session_);
  return sessions_[who] = last_session_;
}

void World::Agent(const Command& command) {
  const std::string node = command.word(0);
  const SessionId session = Connect(command);
  AgentMessage message;
  AgentHello& hello = *message.mutable_hello();
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
  for (const std::string& worker : command.list("running")) {
    WorkerStarted& running = *hello.add_running();
    running.set_job_id(worker.substr(0, worker.find('.')));
    running.set_worker_incarnation(Incarnation(worker));
    running.set_pid(Pid(worker));
  }
  for (const std::string& worker : command.list("ended")) hello.add_ended(Incarnation(worker));
  Take(AgentSaid{session, message});
}

bool World::AgentReport(const Command& command) {
  const std::string worker = command.word(0);
  const std::string job_id = worker.substr(0, worker.find('.'));
  const std::string incarnation = Incarnation(worker);
  AgentMessage message;
  if (command.verb() == "started") {
    message.mutable_started()->set_job_id(job_id);
    message.mutable_started()->set_worker_incarnation(incarnation);
    message.mutable_started()->set_pid(command.number("pid", Pid(worker)));
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
    if (command.has("line")) exited.add_last_lines(command.text("line"));
  } else {
    return false;
  }
  std::string node = command.text("node");
  const auto job = state_.jobs.find(job_id);
  if (node.empty() && job != state_.jobs.end()) {
    Worker* found = nullptr;
    for (Slot& slot : job->second.slots) {
      if (slot.worker && slot.worker->incarnation == incarnation) found = &*slot.worker;
    }
    if (found == nullptr) {
      for (Worker& former : job->second.former) {
        if (former.incarnation == incarnation) found = &former;
      }
    }
    if (found != nullptr) node = found->node_id;
  }
  Take(AgentSaid{sessions_[node], message});
  return true;
}

bool World::WorkerReport(const Command& command) {
  const std::string worker = command.word(0);
  WorkerMessage message = From(worker);
  if (command.verb() == "hello") {
    Connect(command);
    message.mutable_hello()->set_pid(command.number("pid", Pid(worker)));
    message.mutable_hello()->set_protocol_version(static_cast<int>(command.number("version", 1)));
  } else if (command.verb() == "ready") {
    WorkerReady& ready = *message.mutable_ready();
    ready.set_plan_hash(command.text("plan", "p"));
    ready.set_device_hash(command.text("device", "d"));
    ready.set_device_description(absl::StrCat("cpu ", command.text("device", "d")));
    ready.set_highest_generation(command.number("seen"));
    if (command.has("step")) ready.set_committed_step(command.number("step"));
    if (command.has("data")) {
      DataFile& file = *ready.add_data();
      file.set_path("data/train.bin");
      file.set_bytes(command.number("bytes", 1000));
      file.set_hash(static_cast<uint64_t>(command.number("data")));
    }
  } else if (command.verb() == "beat") {
    for (size_t i = 0; !command.word(i).empty(); ++i) {
      if (command.word(i) == "stands" || command.word(i) == "first") continue;
      resumed_ = command.number("resumed");
      Beat(command.word(i), command.number("step"), command.flag("stands"), command.flag("first"));
    }
    return true;
  } else if (command.verb() == "does") {
    for (size_t i = 0; !command.word(i).empty(); ++i) {
      if (command.word(i).find('.') != std::string::npos) SetDoing(command.word(i), command);
    }
    return true;
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
    message.mutable_finished()->set_drained(command.flag("drained"));
  } else if (command.verb() == "failed") {
    message.mutable_failed()->set_code(static_cast<int>(command.number("code", 13)));
    message.mutable_failed()->set_message(command.text("message"));
  } else if (command.verb() == "eval") {
    message.mutable_eval()->set_step(command.number("step"));
    double accuracy = 0;
    LS_CHECK(absl::SimpleAtod(command.text("accuracy", "0"), &accuracy));
    message.mutable_eval()->set_accuracy(accuracy);
  } else {
    return false;
  }
  Take(WorkerSaid{command.number("session", sessions_[worker]), message});
  return true;
}

void World::SetDoing(const std::string& worker, const Command& command) {
  Doing& doing = doings_[worker];
  doing.since = now_;
  WorkerHeartbeat& heartbeat = doing.heartbeat;
  heartbeat.Clear();
  heartbeat.mutable_progress()->set_phase(TRAINING);
  heartbeat.mutable_progress()->set_train_seconds(
      absl::ToDoubleSeconds(command.duration("trained", absl::ZeroDuration())));
  heartbeat.set_activity(REDUCING);
  for (int value = Activity_MIN; value <= Activity_MAX; ++value) {
    if (command.flag(Activity_Name(static_cast<Activity>(value)))) {
      heartbeat.set_activity(static_cast<Activity>(value));
    }
  }
  FlightState& flight = *heartbeat.mutable_flight();
  flight.set_last_completed(command.number("completed"));
  if (command.has("for")) {
    heartbeat.set_waiting_for(static_cast<int>(command.number("for")) + 1);
    flight.set_operation("tree_reduce");
    flight.set_sequence(command.number("sequence"));
    flight.set_dtype("f32");
    flight.set_count(25'600'000);
    flight.set_step(812);
    flight.set_bucket(3);
  }
  heartbeat.mutable_arrivals()->set_reductions(command.number("reductions"));
  heartbeat.mutable_arrivals()->set_last(command.number("last"));
  heartbeat.mutable_arrivals()->set_waited_us(
      absl::ToInt64Microseconds(command.duration("waited", absl::ZeroDuration())));
}

void World::Beat(const std::string& worker, int64_t step, bool stands, bool first) {
  WorkerMessage message = From(worker);
  const auto job = state_.jobs.find(worker.substr(0, worker.find('.')));
  if (job != state_.jobs.end()) {
    message.mutable_heartbeat()->set_generation(job->second.generation.message.generation());
  }
  counters_[worker] += stands ? 0 : 1;
  message.mutable_heartbeat()->set_progress_counter(counters_[worker]);
  message.mutable_heartbeat()->mutable_progress()->set_step(step);
  if (const auto doing = doings_.find(worker); doing != doings_.end()) {
    message.mutable_heartbeat()->MergeFrom(doing->second.heartbeat);
    if (message.heartbeat().waiting_for() != 0) {
      message.mutable_heartbeat()->mutable_flight()->set_open_us(
          absl::ToInt64Microseconds(now_ - doing->second.since));
    }
  }
  message.mutable_heartbeat()->set_resumed_step(resumed_);
  if (first) {
    message.mutable_heartbeat()->mutable_since_first_commit();
  }
  Take(WorkerSaid{sessions_[worker], message});
}

void World::Tick(const Command& command) {
  constexpr absl::Duration kBeat = absl::Milliseconds(100);
  const absl::Time until = now_ + ParseTime(command.word(0));
  absl::Time next_beat = now_, next_agents = now_;
  const std::vector<std::string> mute = command.list("mute");
  const absl::Time begin = now_;
  while (now_ < until) {
    now_ = std::min({until, next_beat + kBeat, std::max(wake_at_, now_ + absl::Milliseconds(1))});
    const size_t before = lines_.size();
    if (now_ >= next_beat + kBeat) {
      next_beat = now_;
      const int64_t step = command.number("step", 1);
      for (const std::string& worker : command.list("beat")) Beat(worker, step, false);
      for (const std::string& worker : command.list("stands")) Beat(worker, step, true);
    }
    if (now_ >= next_agents + absl::Seconds(1)) {
      next_agents = now_;
      AgentsBeat(mute);
    }
    Take(coordinator::Tick{});
    std::erase_if(lines_, [](const std::string& line) {
      return line.find(": progress: step") != std::string::npos;
    });
    if (lines_.size() > before) {
      lines_.insert(lines_.begin() + static_cast<long>(before),
                    absl::StrCat("after ", absl::FormatDuration(now_ - begin)));
    }
  }
}

// Every connected agent but those of `mute` says that it is there.
void World::AgentsBeat(const std::vector<std::string>& mute) {
  std::vector<SessionId> sessions;
  for (const auto& [id, node] : state_.nodes) {
    if (node.session != 0 && std::count(mute.begin(), mute.end(), id) == 0) {
      sessions.push_back(node.session);
    }
  }
  for (const SessionId session : sessions) {
    AgentMessage message;
    message.mutable_heartbeat();
    Take(AgentSaid{session, message});
  }
}

void World::Up(const std::string& job_id) {
  const auto job = state_.jobs.find(job_id);
  LS_CHECK(job != state_.jobs.end()) << "no job " << job_id;
  const size_t workers = job->second.slots.size();
  size_t placed = workers;
  while (placed > 0 && job->second.slots[placed - 1].unplaced()) --placed;
  for (size_t i = 0; i < placed; ++i) {
    const std::string worker = absl::StrCat(job_id, ".", i);
    Do(Command(absl::StrCat("started ", worker)));
    Do(Command(absl::StrCat("hello ", worker)));
  }
  Lines all;
  for (size_t i = 0; i < placed; ++i) all = Do(Command(absl::StrCat("ready ", job_id, ".", i)));
  lines_ = all;
}

void World::Restart() {
  absl::StatusOr<State> state = Rows();
  LS_CHECK(state.ok()) << state.status().ToString();
  state_ = *std::move(state);
  for (auto& [name, session] : sessions_) session = 0;
  Take(coordinator::Tick{});
}

std::string World::Incarnation(const std::string& worker) const {
  const std::vector<std::string> parts = absl::StrSplit(worker, '.');
  if (parts.size() != 2) return worker;
  const auto job = state_.jobs.find(parts[0]);
  size_t place = 0;
  int64_t life = 1;
  if (job != state_.jobs.end() && absl::SimpleAtoi(parts[1], &place) &&
      place < job->second.slots.size()) {
    life = job->second.slots[place].lives;
  }
  return absl::StrCat(worker, ".", life);
}

WorkerMessage World::From(const std::string& worker) const {
  WorkerMessage message;
  message.set_job_id(worker.substr(0, worker.find('.')));
  message.set_incarnation(Incarnation(worker));
  return message;
}

}  // namespace lockstep::coordinator
