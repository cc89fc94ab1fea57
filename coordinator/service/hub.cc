// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/hub.h"

#include <algorithm>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/log.h"
#include "coordinator/core/access.h"
#include "coordinator/core/context.h"
#include "coordinator/core/tokens.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/epoch_proof.h"

namespace lockstep::coordinator {
namespace {

// A coordinator's events are numbered within so many bits.
constexpr int kLifeShift = 40;
// The ticker looks at the clock once in so long though nothing is due.
constexpr absl::Duration kLongestSleep = absl::Minutes(1);

// Six letters and digits that are not mistaken for one another.
std::string RandomId() {
  static constexpr char kAlphabet[] = "23456789abcdefghjkmnpqrstuvwxyz";
  thread_local std::random_device random;  // to open one takes longer than all the rest
  std::string id;
  for (int i = 0; i < 6; ++i) id += kAlphabet[random() % (sizeof(kAlphabet) - 1)];
  return id;
}

// A run on one machine tells its user itself.
bool IsPrivate(const State& state, const Job& job) {
  return std::any_of(state.nodes.begin(), state.nodes.end(), [&](const auto& node) {
    return node.second.is_private && node.second.private_job == job.id;
  });
}

// Returns what followers of a job that was there before this coordinator begin with.
std::vector<JobEvent> WhereItStands(const State& state, const Job& job, const JobStatus& status,
                                    absl::Time now) {
  std::vector<JobEvent> events;
  if (!job.slots.empty() && !IsPrivate(state, job)) {
    events.emplace_back().set_notice(
        absl::StrCat("the coordinator was started again and goes on from its journal; what the ",
                     "workers printed before is in its log files: launcher fetch --logs ", job.id));
  }
  *events.emplace_back().mutable_state() = status;
  for (JobEvent& event : events) *event.mutable_time() = ToProto(now);
  return events;
}

}  // namespace

Hub::Hub(Clock* clock, Store* store, Beginning beginning,
         std::function<void(const absl::Status&)> on_broken, std::function<void(int64_t)> on_later,
         Clock* wall)
    : clock_(clock),
      wall_(wall == nullptr ? clock : wall),
      store_(store),
      on_broken_(std::move(on_broken)),
      on_later_(std::move(on_later)),
      speaker_(beginning.speaker),
      secret_(beginning.state.secret),
      registry_((beginning.speaker.epoch - 1) << kLifeShift, beginning.state.options.log_memory),
      outbox_(std::move(beginning.speaker), std::move(beginning.state)) {
  {
    absl::MutexLock lock(&mu_);
    const State& state = outbox_.state();
    const absl::Time now = clock_->Now();
    // All at once: of each alone it would take a look at the whole queue.
    ListJobsRequest whole;
    whole.set_include_ended(true);
    const ListJobsResponse all = *ListJobs(state, whole, now);
    for (const JobStatus& status : all.jobs()) {
      for (JobEvent& event : WhereItStands(state, state.jobs.at(status.job_id()), status, now)) {
        registry_.Append(status.job_id(), std::move(event));
      }
    }
    Calls nobody_is_there;
    CarryOut(outbox_.Begin(beginning.requests, clock_->Now()), nobody_is_there);
  }
  journal_ = Thread("coord-journal", [this] { RunJournal(); });
  ticker_ = Thread("coord-ticker", [this] { RunTicker(); });
}

Hub::~Hub() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_changed_.NotifyAll();
  ticker_.Join();
  journal_.Join();
}

void Hub::Make(Calls calls) {
  for (const auto& writer : calls.writers) writer->WriteNext();
  for (auto& [done, reply] : calls.answers) {
    if (done) done(std::move(reply));
  }
  if (!calls.broken.ok() && on_broken_) on_broken_(calls.broken);
}

void Hub::RunTicker() {
  for (;;) {
    Calls calls;
    {
      absl::MutexLock lock(&mu_);
      const absl::Duration wait = outbox_.wake_at() - clock_->Now();
      if (!stopping_ && wait > absl::ZeroDuration()) {
        ticker_wakes_ = outbox_.wake_at();
        wake_changed_.WaitFor(&mu_, std::min(wait, kLongestSleep));
        ticker_wakes_ = absl::InfinitePast();
      }
      if (stopping_) return;
      if (clock_->Now() < outbox_.wake_at()) continue;
      CarryOut(outbox_.Wake(clock_->Now()), calls);
    }
    Make(std::move(calls));
  }
}

void Hub::RunJournal() {
  for (;;) {
    std::vector<Row> rows;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Hub::HasWork));
      if (to_write_.empty()) return;
      rows = std::exchange(to_write_, {});
    }
    std::vector<Put> puts;
    for (Row& row : rows)
      puts.push_back({std::move(row.key), std::move(row.value), -1, row.erased});
    const absl::Status saved = store_->PutBatch(puts).status();
    Calls calls;
    {
      absl::MutexLock lock(&mu_);
      const absl::Status before = outbox_.trouble();
      CarryOut(outbox_.Written(saved, clock_->Now()), calls);
      LogTrouble(before);
      if (outbox_.broken()) calls.broken = outbox_.trouble();
    }
    Make(std::move(calls));
  }
}

void Hub::LogTrouble(const absl::Status& before) {
  const absl::Status& now = outbox_.trouble();
  if (outbox_.broken()) {
    LS_LOG_ERROR << "the journal has failed, the coordinator ends: " << now.message();
  } else if (before.ok() && !now.ok()) {
    LS_LOG_ERROR << "the journal has no room; nobody is told anything and requests are refused, "
                    "jobs go on: "
                 << now.message();
  } else if (!before.ok() && now.ok()) {
    LS_LOG_WARNING << "the journal is written again";
  }
}

void Hub::CarryOut(Outgoing outgoing, Calls& calls) {
  for (const Append& append : outgoing.events) {
    if (!append.event.has_state()) continue;
    LS_LOG_INFO << "job " << append.job_id << " " << JobState_Name(append.event.state().state())
                << ": " << append.event.state().reason();
  }
  calls.writers = registry_.Deliver(outgoing);
  for (Answer& answer : outgoing.answers) {
    const auto found = waiting_.find(answer.ticket);
    if (found == waiting_.end()) continue;
    calls.answers.emplace_back(
        std::move(found->second),
        Reply{std::move(answer.status), std::move(answer.submitted), std::move(answer.scaled)});
    waiting_.erase(found);
  }
  if (!outgoing.write.empty()) to_write_ = std::move(outgoing.write);
  if (outbox_.wake_at() < ticker_wakes_) wake_changed_.NotifyAll();
}

void Hub::HandleLocked(const Event& event, Done done, Calls& calls) {
  int64_t ticket = 0;
  if (done) {
    ticket = ++last_ticket_;
    waiting_[ticket] = std::move(done);
  }
  CarryOut(outbox_.Handle(event, ticket, clock_->Now()), calls);
}

// An agent obeys no coordinator that is older than the newest that it has obeyed. What it says of
// that is not taken on trust, as the coordinator begins anew then: whoever holds a token to join
// could make it do so again and again. An administrator could do worse.
void Hub::NoteEpoch(const Event& event) {
  const auto* said = std::get_if<AgentSaid>(&event);
  if (said == nullptr || !said->message.has_hello() || !on_later_) return;
  const AgentHello& hello = said->message.hello();
  const bool later = hello.epoch() > speaker_.epoch && hello.epoch() <= kMostEpoch;
  if (hello.cluster_id() != speaker_.cluster_id || !later) return;
  if (said->owner.empty() || ProvesEpoch(hello.epoch_proof(), secret_, hello.epoch())) {
    return on_later_(hello.epoch());
  }
  absl::MutexLock lock(&mu_);
  if (std::exchange(warned_of_claim_, true)) return;
  LS_LOG_WARNING << "the agent of node '" << hello.node_id() << "', on '" << hello.host()
                 << "', says without proof that it has obeyed coordinator number " << hello.epoch()
                 << " of this cluster, and this one is " << speaker_.epoch
                 << ": it is not believed, and does not obey. If this journal is an older copy, "
                    "`coordinator backup` and `restore` go above that";
}

void Hub::Post(const Event& event, Done done) {
  NoteEpoch(event);
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    HandleLocked(event, std::move(done), calls);
  }
  Make(std::move(calls));
}

Hub::Reply Hub::Handle(const Event& event) {
  absl::Notification there;
  Reply reply;
  Post(event, [&](Reply given) {
    reply = std::move(given);
    there.Notify();
  });
  there.WaitForNotification();
  return reply;
}

bool Hub::IsRepeated(const SubmitJobRequest& request) {
  absl::MutexLock lock(&mu_);
  return outbox_.state().job_of_request.contains(RequestName(request));
}

void Hub::Submit(const SubmitJobRequest& request, Done done) {
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    std::string id = RandomId();
    while (outbox_.KnowsJob(id)) id = RandomId();
    HandleLocked(Submitted{id, request}, std::move(done), calls);
  }
  Make(std::move(calls));
}

void Hub::AwaitSaved(Done done) {
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    const int64_t ticket = ++last_ticket_;
    waiting_[ticket] = std::move(done);
    CarryOut(outbox_.AwaitSaved(ticket, clock_->Now()), calls);
  }
  Make(std::move(calls));
}

SessionId Hub::AddAgent(std::shared_ptr<Outlet<ToAgent>> outlet) {
  absl::MutexLock lock(&mu_);
  return registry_.AddAgent(std::move(outlet));
}

SessionId Hub::AddWorker(std::shared_ptr<Outlet<ToWorker>> outlet) {
  absl::MutexLock lock(&mu_);
  return registry_.AddWorker(std::move(outlet));
}

void Hub::RemoveAgent(SessionId session) {
  {
    absl::MutexLock lock(&mu_);
    if (!registry_.RemoveAgent(session)) return;
  }
  Post(AgentGone{session});
}

void Hub::RemoveWorker(SessionId session) {
  {
    absl::MutexLock lock(&mu_);
    if (!registry_.RemoveWorker(session)) return;
  }
  Post(WorkerGone{session});
}

absl::StatusOr<std::string> Hub::JobId(const std::string& reference, const Requester& who) {
  absl::MutexLock lock(&mu_);
  return FindJobFor(outbox_.state(), reference, "Coordinator/FollowJob", who);
}

absl::StatusOr<DescribeJobResponse> Hub::Describe(const std::string& job_id, const Requester& who) {
  absl::MutexLock lock(&mu_);
  const absl::StatusOr<std::string> id =
      FindJobFor(outbox_.state(), job_id, "Coordinator/DescribeJob", who);
  if (!id.ok()) return id.status();
  return DescribeJob(outbox_.state(), *id, clock_->Now());
}

absl::StatusOr<ListJobsResponse> Hub::List(const ListJobsRequest& request, const Requester& who) {
  absl::MutexLock lock(&mu_);
  absl::StatusOr<ListJobsResponse> jobs = ListJobs(outbox_.state(), request, clock_->Now());
  if (jobs.ok()) HideOthers(outbox_.state(), who, *jobs);
  return jobs;
}

std::set<std::string> Hub::Workdirs() {
  std::set<std::string> workdirs;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, job] : outbox_.state().jobs) {
    if (!job.final()) workdirs.insert(job.spec().workdir());
  }
  return workdirs;
}

GetClusterResponse Hub::Cluster(const Requester& who) {
  absl::MutexLock lock(&mu_);
  GetClusterResponse cluster = GetCluster(outbox_.state(), clock_->Now());
  HideOthers(outbox_.state(), who, cluster);
  return cluster;
}

GetUsageResponse Hub::Usage(const GetUsageRequest& request) {
  absl::MutexLock lock(&mu_);
  return GetUsage(outbox_.state(), request, clock_->Now());
}

absl::StatusOr<FindFilesResponse> Hub::FindFiles(const std::string& job_id, const Requester& who) {
  absl::MutexLock lock(&mu_);
  const absl::StatusOr<std::string> id =
      FindJobFor(outbox_.state(), job_id, "Files/FindFiles", who);
  if (!id.ok()) return id.status();
  return coordinator::FindFiles(outbox_.state(), *id, clock_->Now());
}

absl::Status Hub::AskForFiles(const std::string& job_id, const std::string& node_id,
                              SendFiles wanted, const Requester& who) {
  std::shared_ptr<Outlet<ToAgent>> outlet;
  {
    absl::MutexLock lock(&mu_);
    const State& state = outbox_.state();
    const absl::StatusOr<std::string> id = FindJobFor(state, job_id, "Files/Fetch", who);
    if (!id.ok()) return id.status();
    const absl::StatusOr<SessionId> session = FileSender(state, *id, node_id, clock_->Now());
    if (!session.ok()) return session.status();
    outlet = registry_.AgentAt(*session);
    if (outlet == nullptr) return absl::UnavailableError("the node's agent has just left");
    const Job& job = state.jobs.at(*id);
    wanted.set_job_id(job.id);
    wanted.set_submit_dir(job.request.submit_dir());
    wanted.set_run_dir(job.run_dir);
    wanted.set_user(job.request.user());
    AgentCommand command;
    command.set_cluster_id(outbox_.speaker().cluster_id);
    command.set_epoch(outbox_.speaker().epoch);
    command.set_epoch_proof(outbox_.speaker().epoch_proof);
    *command.mutable_send_files() = std::move(wanted);
    outlet->Enqueue({*session, std::move(command)});
  }
  outlet->WriteNext();
  return absl::OkStatus();
}

absl::StatusOr<Requester> Hub::WhoShows(absl::string_view token) {
  Requester who;
  absl::MutexLock lock(&mu_);
  if (const std::string worker = WorkerOf(outbox_.state(), token); !worker.empty()) {
    who.set_user(worker);
    who.set_role(ROLE_WORKER);
    return who;
  }
  const TokenInfo* const info = FindToken(outbox_.state(), token, wall_->Now());
  if (info == nullptr) return WhyNotTaken(outbox_.state(), token);
  who.set_user(info->user());
  who.set_role(info->role());
  who.set_token_id(info->id());
  return who;
}

std::optional<absl::Time> Hub::EndOfToken(absl::string_view name) {
  if (!std::all_of(name.begin(), name.end(), absl::ascii_isxdigit)) return std::nullopt;
  const std::string hash = absl::HexStringToBytes(name);
  absl::MutexLock lock(&mu_);
  const State& state = outbox_.state();
  const auto found = state.token_of_hash.find(hash);
  if (found == state.token_of_hash.end()) return std::nullopt;
  const TokenInfo& info = state.tokens.at(found->second).info();
  if (!info.has_expires()) return absl::InfiniteFuture();
  const absl::Time ends = FromProto(info.expires());
  return ends > wall_->Now() ? std::make_optional(ends) : std::nullopt;
}

ListTokensResponse Hub::Tokens(const Requester& who) {
  absl::MutexLock lock(&mu_);
  return ListTokens(outbox_.state(), who);
}

absl::StatusOr<Hub::Next> Hub::NextEvent(const std::string& job_id, FollowerPlace& place,
                                         bool logs) {
  absl::MutexLock lock(&mu_);
  return registry_.NextEvent(job_id, place, logs);
}

void Hub::AddFollower(const std::string& job_id, std::shared_ptr<StreamWriter> follower) {
  absl::MutexLock lock(&mu_);
  registry_.AddFollower(job_id, std::move(follower));
}

void Hub::RemoveFollower(const std::string& job_id, const std::shared_ptr<StreamWriter>& follower) {
  absl::MutexLock lock(&mu_);
  registry_.RemoveFollower(job_id, follower);
}

}  // namespace lockstep::coordinator
