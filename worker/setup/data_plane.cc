// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/data_plane.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_transport.h"
#include "collectives/shm/layout.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cuda/module.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"
#include "worker/setup/cuda_queue.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/nccl_settings.h"

namespace lockstep::worker {
namespace {

static_assert(job::kMostTrainersOfHost == kMaxRanksOfHost);

// OK, or why NCCL cannot reduce here.
absl::Status NcclIsPossible(const JobSpec& job, const WorkerAssignment& assignment) {
  const absl::StatusOr<const engine::cuda::Tables*> tables = engine::cuda::LoadModule();
  LS_RETURN_IF_ERROR(tables.status());
  // An emulated GPU has only the NCCL that is given with it.
  const char* const given = std::getenv("LOCKSTEP_NCCL_LIBRARY");
  if (engine::cuda::IsEmulated(**tables) && (given == nullptr || *given == '\0')) {
    return absl::FailedPreconditionError("the GPU is an emulated one");
  }
  if (absl::StartsWith(assignment.device().uuid(), "MIG-")) {
    return absl::FailedPreconditionError("NCCL does not join instances of GPUs (MIG)");
  }
  LS_ASSIGN_OR_RETURN(const NcclLibrary* library, LoadNccl());
  if (!assignment.device().shared()) return absl::OkStatus();
  if (!MayShareGpu(job.nccl())) {
    return absl::FailedPreconditionError(
        "workers of this host share GPUs, and nccl.multi_rank_gpu is false");
  }
  if (library->version >= kNcclSharesGpus) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("workers of this host share GPUs, which ",
                                                    library->name(),
                                                    " cannot join: NCCL 2.30 is the first"));
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

// Returns whether gradients go to other hosts while later ones are computed. It is for measurements
// to say otherwise (bench/overlap.py); no bit depends on it.
bool Overlaps() {
  const char* const value = std::getenv("LOCKSTEP_OVERLAP");
  return value == nullptr || std::string_view(value) != "0";
}

// What joins the ranks beside their GPUs, or where they have none.
absl::StatusOr<std::unique_ptr<Transport>> OpenHost(const ShmTransport::Options& shm,
                                                    bool over_hosts, absl::Duration silence,
                                                    std::vector<std::string> told) {
  if (!over_hosts) return ShmTransport::Create(shm);
  HostsTransport::Options hosts;
  hosts.shm = shm;
  hosts.silence = silence;
  hosts.overlap = Overlaps();
  if (std::all_of(told.begin(), told.end(), IsLoopback)) hosts.listen = std::move(told);
  return HostsTransport::Create(hosts);
}

// Returns whether gradients of `job` on the assigned device go by NCCL. When they do not and could
// have been meant to, `why` says why. Errors: FailedPrecondition when the job insists.
absl::StatusOr<bool> ReducesByNccl(const JobSpec& job, const WorkerAssignment& assignment,
                                   std::string* why) {
  const std::string& use = job.nccl().use();
  if (use == "never" || assignment.device().kind() != "cuda") return false;
  absl::Status possible = NcclIsPossible(job, assignment);
  if (CompressesGradients(job)) {
    possible = absl::FailedPreconditionError(
        "NCCL does not round sums of gradients (train.gradient_compression)");
  }
  if (possible.ok()) return true;
  if (use == "always") return Annotate(possible, "nccl.use is always");
  *why = std::string(possible.message());
  return false;
}

}  // namespace

absl::StatusOr<GradientPlace> PlaceOfGradients(const JobSpec& job,
                                               const WorkerAssignment& assignment) {
  std::string why;
  LS_ASSIGN_OR_RETURN(const bool nccl, ReducesByNccl(job, assignment, &why));
  if (nccl) return GradientPlace::kGpu;
  if (!why.empty() && assignment.slot() == 0) {
    LS_LOG_INFO << "gradients go through the host's memory: " << why;
  }
  return GradientPlace::kHost;
}

GradientPlace ExpectedPlace(const JobSpec& job) {
  if (!absl::StartsWith(job.resources().device(), "cuda")) return GradientPlace::kHost;
  if (CompressesGradients(job)) return GradientPlace::kHost;
  if (job.nccl().use() == "always") return GradientPlace::kGpu;
  WorkerAssignment assignment;
  assignment.mutable_device()->set_kind("cuda");
  std::string why;
  const absl::StatusOr<bool> nccl = ReducesByNccl(job, assignment, &why);
  return nccl.ok() && *nccl ? GradientPlace::kGpu : GradientPlace::kHost;
}

std::string PlanAsTold(const engine::Plan& plan, GradientPlace place) {
  return absl::StrCat(plan.hash(),
                      place == GradientPlace::kGpu ? ", which reduces gradients by NCCL" : "");
}

absl::StatusOr<std::unique_ptr<Transport>> OpenDataPlane(
    const CompiledJob& compiled, GradientPlace place, const WorkerAssignment& assignment,
    const LifePage* life, absl::Duration patience, bool over_hosts, std::vector<std::string> told) {
  ShmTransport::Options shm;
  shm.life = life;
  shm.memory_patience = patience;
  shm.arena_bytes = compiled.arena_bytes;
  shm.reserved_bytes = compiled.reserved_bytes;
  const absl::Duration silence = job::FailureDetection(compiled.job);
  if (place == GradientPlace::kHost) return OpenHost(shm, over_hosts, silence, std::move(told));
  NcclTransport::Options options;
  LS_ASSIGN_OR_RETURN(options.library, LoadNccl());
  LS_ASSIGN_OR_RETURN(options.queue, CudaQueue::Open(assignment.device().uuid()));
  LS_ASSIGN_OR_RETURN(options.control, OpenHost(shm, over_hosts, silence, std::move(told)));
  const Nccl& settings = compiled.job.nccl();
  options.staging = MostStaging(compiled.job, compiled.vector_count);
  options.fastest = settings.order() == "fastest";
  options.may_share_gpu = MayShareGpu(settings);
  options.windows = !settings.has_symmetric_memory() || settings.symmetric_memory();
  return std::make_unique<NcclTransport>(std::move(options));
}

}  // namespace lockstep::worker
