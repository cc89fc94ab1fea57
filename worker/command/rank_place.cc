// SPDX-License-Identifier: Apache-2.0
#include "worker/command/rank_place.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "job/meaning/defaults.h"

namespace lockstep::worker {
namespace {

constexpr char kThisMachine[] = "127.0.0.1";

// Of "10.0.0.1:4711" or "[fd00::1]:4711".
absl::Status TakeAddress(const std::string& text, RankPlace* place) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &place->master_port)) {
    return absl::InternalError(absl::StrCat("rank 0 published the address '", text, "'"));
  }
  place->master_addr = text.substr(0, colon);
  if (place->master_addr.front() == '[' && place->master_addr.back() == ']') {
    place->master_addr = place->master_addr.substr(1, place->master_addr.size() - 2);
  }
  return absl::OkStatus();
}

const Member* Find(const Generation& generation, const std::string& incarnation) {
  for (const Member& member : generation.members()) {
    if (member.incarnation() == incarnation) return &member;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<RankPlace> PlaceInGeneration(const Generation& generation,
                                            const std::string& incarnation) {
  const Member* own = Find(generation, incarnation);
  if (own == nullptr) {
    return absl::InternalError(absl::StrCat(incarnation, " is no member of its generation"));
  }
  RankPlace place;
  place.rank = own->rank();
  place.world_size = generation.members_size();
  place.attempt = generation.generation() - 1;
  place.local_world_size = 0;
  std::vector<std::string> nodes;
  std::vector<std::string> gpus;
  for (const Member& member : generation.members()) {
    const std::string& node = member.address().node_id();
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
    if (node != own->address().node_id()) continue;
    ++place.local_world_size;
    place.local_rank += member.rank() < own->rank();
    if (!member.device_uuid().empty()) gpus.push_back(member.device_uuid());
  }
  place.group_rank = static_cast<int>(
      std::find(nodes.begin(), nodes.end(), own->address().node_id()) - nodes.begin());
  place.group_world_size = static_cast<int>(nodes.size());
  if (static_cast<int>(gpus.size()) == place.local_world_size) {
    place.gpus = absl::StrJoin(gpus, ",");
  }
  const DataPlaneAddress& first = generation.members(0).address();
  if (first.tcp().empty()) return absl::InternalError("rank 0 has published no port");
  if (absl::Status taken = TakeAddress(first.tcp(0), &place); !taken.ok()) return taken;
  if (nodes.size() == 1) place.master_addr = kThisMachine;
  return place;
}

std::vector<std::string> RankEnvironment(const RankPlace& place, const WorkerAssignment& assignment,
                                         const std::string& error_file,
                                         const std::function<bool(const std::string&)>& is_set) {
  const JobSpec& spec = assignment.spec();
  std::vector<std::string> environment = {
      absl::StrCat("RANK=", place.rank),
      absl::StrCat("WORLD_SIZE=", place.world_size),
      absl::StrCat("LOCAL_RANK=", place.local_rank),
      absl::StrCat("LOCAL_WORLD_SIZE=", place.local_world_size),
      absl::StrCat("GROUP_RANK=", place.group_rank),
      absl::StrCat("GROUP_WORLD_SIZE=", place.group_world_size),
      absl::StrCat("ROLE_RANK=", place.rank),
      absl::StrCat("ROLE_WORLD_SIZE=", place.world_size),
      absl::StrCat("MASTER_ADDR=", place.master_addr),
      absl::StrCat("MASTER_PORT=", place.master_port),
      absl::StrCat("TORCHELASTIC_RESTART_COUNT=", place.attempt),
      absl::StrCat("TORCHELASTIC_MAX_RESTARTS=", job::MaxRestarts(spec)),
      absl::StrCat("TORCHELASTIC_ERROR_FILE=", error_file),
  };
  // What the job's own file or flags say of them.
  const auto unless_given = [&](const std::string& name, const std::string& value) {
    if (!spec.env().contains(name)) environment.push_back(absl::StrCat(name, "=", value));
  };
  unless_given("ROLE_NAME", "default");
  unless_given("TORCHELASTIC_RUN_ID", assignment.job_id());
  const auto unless_set = [&](const std::string& name, const std::string& value) {
    if (!is_set(name)) environment.push_back(absl::StrCat(name, "=", value));
  };
  unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // What Python prints is seen when it is printed, and not lost with the process.
  unless_set("PYTHONUNBUFFERED", "1");
  const int threads = std::max(1, spec.resources().cpus_per_proc());
  if (place.local_world_size > 1 || threads > 1) {
    unless_set("OMP_NUM_THREADS", absl::StrCat(threads));
  }
  if (!place.gpus.empty()) environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", place.gpus));
  return environment;
}

}  // namespace lockstep::worker
