// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/communicator.h"
#include "collectives/group_end.h"
#include "common/clock.h"
#include "common/farewell.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cuda/device.h"
#include "engine/engine.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/checkpoint/restore.h"
#include "worker/checkpoint/run_data.h"
#include "worker/control/control_link.h"
#include "worker/control/disk_wait.h"
#include "worker/control/farewell_watch.h"
#include "worker/control/generation_end.h"
#include "worker/control/membership.h"
#include "worker/control/progress_board.h"
#include "worker/control/record_writer.h"
#include "worker/control/run_dir.h"
#include "worker/control/run_record.h"
#include "worker/control/telemetry.h"
#include "worker/generation_start.h"
#include "worker/peer_protocol.h"
#include "worker/profile_writer.h"
#include "worker/setup/data_plane.h"
#include "worker/setup/device_choice.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/opened_data.h"
#include "worker/setup/own_files.h"
#include "worker/setup/reach.h"
#include "worker/setup/tuning_files.h"
#include "worker/step/trainer.h"
#include "worker/survivors.h"

namespace lockstep::worker {
namespace {

constexpr absl::Duration kLongestBeat = absl::Milliseconds(200);
constexpr absl::Duration kLookForDead = absl::Milliseconds(100);

int64_t PeakRssBytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// The life of one worker; each step of it is a method, in order.
class Worker {
 public:
  Worker(const WorkerBootstrap& bootstrap, LifePage* life, Clock* clock)
      : bootstrap_(bootstrap),
        job_(bootstrap.assignment().spec()),
        life_(life),
        clock_(clock),
        over_hosts_(MayBeOverHosts(bootstrap)),
        link_(bootstrap),
        profile_(RunDir(bootstrap.assignment()), bootstrap.assignment().job_id(), &board_, clock),
        farewell_([this] { link_.LoseCoordinator(); }) {}

  absl::Status Run() {
    link_.Start();
    const absl::Duration detection = job::FailureDetection(job_);
    telemetry_ =
        std::make_unique<Telemetry>(&board_, &link_, clock_, std::min(detection / 5, kLongestBeat));
    LS_RETURN_IF_ERROR(Prepare());
    while (!exit_.has_value()) {
      LS_RETURN_IF_ERROR(FinishKnownStep());
      LS_RETURN_IF_ERROR(SendReady());
      board_.Enter(WAITING);
      const absl::StatusOr<Generation> generation = AwaitGeneration();
      if (absl::IsCancelled(generation.status()) && link_.coordinator_lost()) return SayFarewell();
      LS_RETURN_IF_ERROR(generation.status());
      if (generation->members().empty()) {
        highest_generation_ = generation->generation();
        continue;
      }
      LS_RETURN_IF_ERROR(EnterGeneration(*generation));
      if (std::exchange(done_, false)) LS_RETURN_IF_ERROR(Finish());
    }
    return absl::OkStatus();
  }

  // Returns what the process exits with after `status`, the result of Run.
  int Conclude(const absl::Status& status) {
    if (exit_.has_value()) return exit_->code();
    if (const auto told = link_.exit_requested(); told.has_value()) {
      LS_LOG_INFO << "leaving: " << told->reason();
      return told->code();
    }
    LS_LOG_ERROR << status.message();
    // The steps that the job's result counts are those of the newest heartbeat.
    if (telemetry_ != nullptr) telemetry_->Send();
    link_.SendFailed(highest_generation_, status,
                     IsOtherData(status) ? WorkerFailed::OTHER_DATA : WorkerFailed::UNSPECIFIED);
    // The launcher's code for a job that cannot fit (docs/exit_codes.md).
    return absl::IsResourceExhausted(status) ? 5 : 1;
  }

 private:
  // Data, plan, memory, kernels: all that does not depend on the other workers.
  absl::Status Prepare() {
    board_.Enter(LOADING);
    LS_RETURN_IF_ERROR(CheckOwnFilesAreNoData(job_, RunDir(bootstrap_.assignment())));
    LS_RETURN_IF_ERROR(data_.Open(job_, over_hosts_, &board_));
    board_.Enter(COMPILING);
    LS_ASSIGN_OR_RETURN(const JobSpec own, JobOnDevice(job_, bootstrap_.assignment()));
    LS_RETURN_IF_ERROR(CheckDevice(bootstrap_.assignment()));
    LS_ASSIGN_OR_RETURN(const GradientPlace place, PlaceOfGradients(own, bootstrap_.assignment()));
    LS_ASSIGN_OR_RETURN(CompiledJob compiled, CompileJob(own, data_.data(), place));
    Warn(compiled);
    plan_told_ = PlanAsTold(*compiled.plan, place);
    compiled.tuning_files = TuningFiles(own, RunDir(bootstrap_.assignment()));
    LS_ASSIGN_OR_RETURN(transport_, OpenDataPlane(compiled, place, bootstrap_.assignment(), life_,
                                                  job::FailureDetection(job_), over_hosts_,
                                                  {bootstrap_.data_addresses().begin(),
                                                   bootstrap_.data_addresses().end()}));
    LS_ASSIGN_OR_RETURN(trainer_, Trainer::Create(compiled, {.data = &data_.data(),
                                                             .transport = transport_.get(),
                                                             .board = &board_,
                                                             .link = &link_,
                                                             .clock = clock_}));
    board_.Moved();
    LS_ASSIGN_OR_RETURN(device_hash_, trainer_->DeviceHash());
    LS_ASSIGN_OR_RETURN(device_description_, DescribeDeviceOf(trainer_->plan()));
    const std::string run_dir = RunDir(bootstrap_.assignment());
    record_ = std::make_unique<RunRecord>(run_dir, compiled.total_steps);
    LS_ASSIGN_OR_RETURN(faults_,
                        FaultInjector::FromEnvironment(bootstrap_.assignment().slot(), run_dir,
                                                       bootstrap_.assignment().job_id()));
    trainer_->Observe(record_.get(), faults_.get(), [this] { telemetry_->BeatSoon(); });
    LS_ASSIGN_OR_RETURN(const StepPace pace, StepPace::FromEnvironment(clock_));
    trainer_->SetPace(pace);
    LS_RETURN_IF_ERROR(PrepareCheckpoints());
    telemetry_->SetRecord(record_.get());
    telemetry_->SetRecorder(&transport_->flight_recorder());
    return absl::OkStatus();
  }

  // One worker says it for all.
  void Warn(const CompiledJob& compiled) const {
    if (bootstrap_.assignment().slot() != 0) return;
    for (const std::string& warning : WarningsOf(compiled)) LS_LOG_WARNING << warning;
  }

  absl::Status PrepareCheckpoints() {
    if (!SavesCheckpoints(job_)) return absl::OkStatus();
    LS_ASSIGN_OR_RETURN(const Every every, job::SaveEvery(job_));
    Checkpointer::Settings settings;
    settings.folder = job_.checkpoint().dir();
    settings.run_dir = RunDir(bootstrap_.assignment());
    settings.host = bootstrap_.host();
    settings.worker = bootstrap_.assignment().incarnation();
    settings.keep = std::max(1, job_.checkpoint().keep());
    settings.every = every.time;
    settings.identity = IdentityOf(job_, bootstrap_.assignment().job_id(), trainer_->plan(),
                                   device_hash_, device_description_);
    settings.identity.samples = data_.data().train->size();
    settings.identity.data_stamp = data_.identity()->stamp();
    settings.data = [this](const std::function<bool()>& go_on) {
      return data_.identity()->RecordsAsMade([&] { return !alone_ && go_on(); });
    };
    settings.plan = &trainer_->plan();
    settings.state = trainer_->state();
    settings.publish = [this] { return trainer_->PublishState(); };
    settings.locate = [policy = &trainer_->policy()](size_t offset, size_t* bytes) {
      return policy->Locate(offset, bytes);
    };
    settings.in_parts = [policy = &trainer_->policy()] { return policy->in_parts(); };
    settings.board = &board_;
    settings.clock = clock_;
    const int workers = job::WantedWorkers(job_);
    if (bootstrap_.assignment().slot() <
        CheckpointLayout::PartsFor(trainer_->plan().state_bytes(), workers)) {
      settings.ready_bytes = Checkpointer::CopyBytes(trainer_->plan(), workers);
    }
    settings.may_publish = [this](const checkpoint::Manifest& manifest, const std::string& path) {
      return link_.OfferCheckpoint(MarkOf(manifest, path), job::FailureDetection(job_));
    };
    settings.on_durable = [this](int64_t step, bool first) {
      // What went before a checkpoint is on record before anybody can go on from it.
      if (first && alone_) record_->SetWriter(true, /*remembered=*/true);
      if (first) record_->Write();
      if (faults_ != nullptr) faults_->At(chaos::Place::kCheckpoint, step);
    };
    resume_ = {settings.folder, job_.checkpoint().resume(), settings.identity,
               !job_.train().has_reproducible() || job_.train().reproducible(), settings.run_dir};
    if (resume_.resume.empty()) resume_.resume = "auto";
    settings.takes_over = resume_.takes_over();
    resume_.data = [this](const std::function<bool()>& go_on) {
      return data_.identity()->Records(go_on);
    };
    // Whoever takes a dead worker's place has opened the files anew.
    const auto check = [this](const std::function<bool()>& go_on) -> absl::Status {
      LS_ASSIGN_OR_RETURN(const bool compared, CheckRunData(resume_, data_.identity(), go_on));
      if (compared) data_.NoteCompared();
      return absl::OkStatus();
    };
    LS_RETURN_IF_ERROR(WorkOnDisk(&board_, clock_, check));
    LS_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(settings));
    resume_.check_mounted = [this] { return checkpointer_->CheckMounted(); };
    trainer_->SaveWith(checkpointer_.get(), &resume_);
    return absl::OkStatus();
  }

  // Between generations, also for long: members that have died, and those that stood still and are
  // killed meanwhile, need not wait for the next generation to give their memory back, because who
  // replaces them has to reserve it before there can be one.
  absl::StatusOr<Generation> AwaitGeneration() {
    while (true) {
      if (last_communicator_ != nullptr) {
        trainer_->WaitForCopy();  // it may read what peers of that generation had
        last_communicator_->ReleaseDead();
      }
      LS_ASSIGN_OR_RETURN(const std::optional<Generation> generation,
                          link_.WaitForGeneration(highest_generation_, kLookForDead));
      if (generation.has_value()) return *generation;
    }
  }

  // A step that is reduced on every rank is finished before anything is said.
  absl::Status FinishKnownStep() {
    if (last_communicator_ == nullptr) return absl::OkStatus();
    const auto reduced = last_communicator_->NewestReduce();
    if (!reduced.has_value() || !reduced->whole) return absl::OkStatus();
    return trainer_->FinishStep(last_communicator_.get(), *reduced);
  }

  absl::Status CatchUp(int64_t start_step) {
    LS_RETURN_IF_ERROR(trainer_->CatchUp(last_communicator_.get(), start_step));
    trainer_->WaitForCopy();  // it may read what peers of that generation have
    last_communicator_.reset();
    return absl::OkStatus();
  }

  absl::Status SendReady() {
    WorkerReady ready;
    ready.set_highest_generation(highest_generation_);
    ready.set_committed_step(trainer_->begun_step());
    ready.set_plan_hash(plan_told_);
    ready.set_peer_protocol(SpokenPeerProtocol());
    ready.set_device_hash(device_hash_);
    ready.set_device_description(device_description_);
    *ready.mutable_address() =
        AddressOf(bootstrap_, transport_->address(), transport_->key(), transport_->tcp_port());
    data_.Tell(&ready);
    link_.SendReady(ready);
    return absl::OkStatus();
  }

  // Trains in `generation` to its end. OK also when it was aborted: the next one follows.
  absl::Status EnterGeneration(const Generation& generation) {
    LS_RETURN_IF_ERROR(CatchUp(generation.start_step()));
    highest_generation_ = generation.generation();
    board_.EnterGeneration(highest_generation_);
    GroupSpec group = GroupOf(generation, bootstrap_);
    group.reach_within = ReachPatience(job_);
    if (group.rank < 0) return absl::InternalError("the generation does not have this worker");
    SetLogPrefix(absl::StrCat("r", group.rank, " g", highest_generation_));
    absl::Status status = RunIn(generation, group);
    link_.UnwatchGeneration();
    if (absl::IsAborted(status) && !link_.exit_requested().has_value()) {
      LS_LOG_INFO << "generation " << highest_generation_ << " ended after step "
                  << trainer_->committed_step() << ": " << status.message();
      return absl::OkStatus();
    }
    return status;
  }

  absl::Status RunIn(const Generation& generation, const GroupSpec& group) {
    // Who is there waits for the others as for any start: a death among them ends it at once.
    const absl::Time deadline = clock_->Now() + job::StartTimeout(job_);
    link_.WatchGeneration(
        highest_generation_,
        [this](const std::string& reason) {
          transport_->AbortConnect(highest_generation_, reason);
        },
        /*connecting=*/true);
    absl::StatusOr<std::unique_ptr<Communicator>> connected = transport_->Connect(group, deadline);
    if (!connected.ok()) {
      return Leave(
          group, connected.status(),
          AfterNoConnection(group, bootstrap_.node_id(), connected.status(), link_.heard()));
    }
    last_communicator_ = *std::move(connected);
    survivors_.NoteGeneration(generation);
    Communicator* const communicator = last_communicator_.get();
    link_.WatchGeneration(highest_generation_, [communicator](const std::string& reason) {
      communicator->Abort(reason);
    });
    absl::StatusOr<TrainOutcome> outcome =
        Train(generation, communicator, group.members[static_cast<size_t>(group.rank)].shards);
    absl::Status ended = outcome.status();
    peak_bytes_.reset();
    if (ended.ok() && trainer_->profiler() != nullptr && !outcome->regrouped) {
      peak_bytes_ = PeakRssBytes();  // the profile's memory is not the job's
      ended = profile_.WriteRank(trainer_.get(), communicator, group.rank);
    }
    link_.UnwatchGeneration();
    if (!ended.ok()) {
      const GenerationEnd end = AfterFailure(group, bootstrap_.node_id(), ended);
      // What ends this worker is not the communicator's own failure: the others hear it from here.
      if (!absl::IsAborted(end.status)) communicator->Abort(std::string(ended.message()));
      return Leave(group, ended, end);
    }
    drained_ = outcome->drained;
    rank_ = group.rank;
    first_of_host_ = FirstRanks(generation)[static_cast<size_t>(group.rank)] == group.rank;
    done_ = !outcome->regrouped;
    return absl::OkStatus();
  }

  // The generation ended with `status`, of which this worker makes `end`.
  absl::Status Leave(const GroupSpec& group, const absl::Status& status, const GenerationEnd& end) {
    if (!end.not_met) survivors_.NoteLost(group, EndOf(status));
    for (const PeerLost& lost : end.told) link_.SendPeerLost(lost);
    return end.status;
  }

  absl::StatusOr<TrainOutcome> Train(const Generation& generation, Communicator* communicator,
                                     ShardRange held) {
    std::vector<int> holders;
    const absl::Status joined = JoinGeneration(Own(), generation, communicator, &holders);
    RecordWriter::Part part;
    // Also when it failed then: in the next generation nobody sees that a member had been behind.
    if (!holders.empty()) {
      part = record_writer_.InGeneration(generation, communicator->rank(), holders);
      record_->SetWriter(part.writes, part.remembered);
    }
    LS_RETURN_IF_ERROR(joined);
    // As in on_durable. Of what it owes, the rank of part 0 knows nothing.
    if (!part.writes && checkpointer_ != nullptr && record_->Owes()) {
      board_.Enter(SAVING);  // who waits for a disk is not taken for one that does not leave
      LS_RETURN_IF_ERROR(WriteRecord());
    }
    telemetry_->BeatSoon();
    return trainer_->RunGeneration(communicator, held, part.writes ? record_.get() : nullptr);
  }

  // Writes what this worker has to write. Blocks for the disk, while the board moves.
  absl::Status WriteRecord() {
    return WorkOnDisk(&board_, clock_, [this](const std::function<bool()>&) {
      record_->Write();
      return absl::OkStatus();
    });
  }

  GenerationStart Own() {
    return {.assignment = &bootstrap_.assignment(),
            .board = &board_,
            .clock = clock_,
            .trainer = trainer_.get(),
            .checkpointer = checkpointer_.get(),
            .resume = &resume_,
            .folders = &folders_,
            .data_stamp = data_.identity() == nullptr ? 0 : data_.identity()->stamp()};
  }

  // The model is durable before anyone leaves. When the worker that writes it fails meanwhile, the
  // others are back between generations after this, with exit_ not set.
  absl::Status Finish() {
    WorkerFinished finished;
    finished.set_generation(highest_generation_);
    finished.set_steps(trainer_->committed_step());
    finished.set_total_steps(trainer_->total_steps());
    finished.set_epochs(trainer_->epochs_done());
    finished.set_train_seconds(trainer_->train_seconds());
    finished.set_samples_per_second(trainer_->samples_per_second());
    if (trainer_->eval().has_value()) *finished.mutable_eval() = *trainer_->eval();
    finished.set_drained(drained_);
    const bool given_up = drained_ && link_.coordinator_lost();  // nobody asks for the model
    if (first_of_host_ && !given_up) data_.TellOfChanges(&board_, clock_);
    if (rank_ == 0 && !given_up) {
      board_.Enter(SAVING);
      LS_RETURN_IF_ERROR(trainer_->PublishState());
      if (faults_ != nullptr) faults_->At(chaos::Place::kSave, trainer_->committed_step());
      const std::string folder = RunDir(bootstrap_.assignment()) + "/model";
      const bool averages = trainer_->plan().spec().ema_decay > 0, best = trainer_->has_best();
      LS_RETURN_IF_ERROR(
          WorkOnDisk(&board_, clock_, [&](const std::function<bool()>& go_on) -> absl::Status {
            LS_ASSIGN_OR_RETURN(const WrittenModel model,
                                WriteModel(folder, job_, trainer_->plan(), trainer_->state(),
                                           data_.data().train->origin(), go_on));
            RemoveOldWeights(folder, averages, best);
            finished.set_model_path(model.path);
            finished.set_model_sha256(model.sha256);
            return absl::OkStatus();
          }));
    }
    profile_.Merge(job_.profile().sort());
    board_.Enter(SAVING);
    LS_RETURN_IF_ERROR(WriteRecord());
    board_.Enter(FINISHED);
    telemetry_->Send();
    finished.set_peak_rss_bytes(peak_bytes_.has_value() ? *peak_bytes_ : PeakRssBytes());
    exit_ = link_.FinishAndWait(finished);
    if (!exit_.has_value() && link_.coordinator_lost()) return SayFarewell();
    return absl::OkStatus();
  }

  // The coordinator is gone for good, and this worker is in no generation: it saves what it has, so
  // that another run goes on from there, and leaves.
  absl::Status SayFarewell() {
    alone_ = true;
    board_.Enter(SAVING);
    const int64_t step = trainer_->begun_step();
    absl::StatusOr<std::string> saved = trainer_->SaveAlone();
    if (absl::IsNotFound(saved.status())) {
      trainer_->WaitForCopy();
      // It is kept only where another one may have begun a step that this worker knows.
      const auto reduced =
          last_communicator_ != nullptr ? last_communicator_->NewestReduce() : std::nullopt;
      if (!reduced.has_value() || reduced->step != step + 1) last_communicator_.reset();
      saved = survivors_.SaveTogether({highest_generation_, &bootstrap_, life_, transport_.get(),
                                       trainer_.get(), clock_,
                                       [this](int64_t start_step) { return CatchUp(start_step); },
                                       [this](const Generation& left, Communicator* communicator) {
                                         highest_generation_ = left.generation();
                                         return LookAtFolders(Own(), left, communicator);
                                       }});
    }
    exit_.emplace();
    exit_->set_code(saved.ok() ? kFarewellSaved : kFarewellNotSaved);
    if (saved.ok()) {
      // Those that are left may have finished the step, or gone back to the one before.
      LS_LOG_INFO << "the coordinator is gone for good: the state after step "
                  << trainer_->committed_step() << " is saved as " << *saved;
    } else {
      LS_LOG_WARNING << "the coordinator is gone for good, and the state after step " << step
                     << " is not saved by this worker: " << saved.status().message();
    }
    return absl::OkStatus();
  }

  const WorkerBootstrap bootstrap_;
  const JobSpec job_;
  LifePage* const life_;
  Clock* const clock_;
  const bool over_hosts_;  // some of its peers may be
  ProgressBoard board_;
  OpenedData data_;
  std::unique_ptr<Transport> transport_;
  Survivors survivors_;
  std::unique_ptr<RunRecord> record_;
  std::unique_ptr<FaultInjector> faults_;
  ControlLink link_;
  std::unique_ptr<Trainer> trainer_;
  // Of the generation that this worker was in last; what was reduced in it stays readable. A
  // reduction that has begun uses what the trainer has.
  std::unique_ptr<Communicator> last_communicator_;
  ResumeSource resume_;
  FoldersBefore folders_;
  std::unique_ptr<Checkpointer> checkpointer_;  // reads the trainer's state, and peers' memory
  std::unique_ptr<Telemetry> telemetry_;
  std::string plan_told_;
  std::string device_hash_;
  std::string device_description_;
  int64_t highest_generation_ = 0;
  RecordWriter record_writer_;
  int rank_ = -1;
  bool first_of_host_ = false;  // in its newest generation
  bool done_ = false;
  bool drained_ = false;
  ProfileWriter profile_;
  std::optional<int64_t> peak_bytes_;  // of memory, before its profile was written
  std::atomic<bool> alone_{false};     // it saves what it has, and no generation goes on from there
  std::optional<Exit> exit_;
  FarewellWatch farewell_;  // last: its thread uses the rest
};

}  // namespace

int RunWorker(const WorkerBootstrap& bootstrap, LifePage* life, Clock* clock) {
  auto worker = std::make_unique<Worker>(bootstrap, life, clock);
  const int code = worker->Conclude(worker->Run());
  // The transport would give back memory of that GPU, which waits for it.
  if (engine::cuda::Device::AnyIsAbandoned()) static_cast<void>(worker.release());
  return code;
}

}  // namespace lockstep::worker
