// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/usage.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kEvery = absl::Seconds(1);

GpuUsage UsageOf(const Nvml& nvml, const Nvml::Device& device) {
  GpuUsage usage;
  usage.set_uuid(device.uuid);
  usage.set_name(device.name);
  usage.set_memory(device.memory);
  const Nvml::Use use = nvml.UseOf(device);
  usage.set_used(use.used.value_or(0));
  if (use.utilisation.has_value()) usage.set_utilisation(*use.utilisation);
  if (use.watts.has_value()) usage.set_watts(*use.watts);
  if (use.watts_limit.has_value()) usage.set_watts_limit(*use.watts_limit);
  if (use.celsius.has_value()) usage.set_celsius(*use.celsius);
  if (use.sm_mhz.has_value()) usage.set_sm_mhz(*use.sm_mhz);
  if (use.memory_mhz.has_value()) usage.set_memory_mhz(*use.memory_mhz);
  for (const auto& [pid, bytes] : nvml.Processes(device)) usage.add_pids(pid);
  return usage;
}

}  // namespace

ProcessTimes TimesOf(int64_t pid) {
  ProcessTimes times;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  // A process that ends meanwhile is an error of the read, which this turns into a short text.
  std::string text;
  std::getline(file, text, '\0');
  // The name, in brackets, may hold anything; after it come the state and numbers (proc(5)).
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return times;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  for (int i = 16; i < 24; ++i) fields >> skipped;
  int64_t pages = 0;
  fields >> pages;
  if (!fields) return times;
  times.cpu_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  times.rss_bytes = pages * ::sysconf(_SC_PAGESIZE);
  return times;
}

UsageSampler::UsageSampler(std::vector<std::string> uuids)
    : uuids_(std::move(uuids)), thread_("agent-usage", [this] { Run(); }) {}

UsageSampler::~UsageSampler() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  stopped_.NotifyAll();
  thread_.Join();
}

void UsageSampler::Watch(std::map<std::string, int64_t> pids) {
  absl::MutexLock lock(&mu_);
  pids_ = std::move(pids);
}

AgentHeartbeat UsageSampler::Latest() const {
  absl::MutexLock lock(&mu_);
  return latest_;
}

std::vector<Nvml::Device> UsageSampler::Watched(const Nvml& nvml) const {
  absl::StatusOr<std::vector<Nvml::Device>> devices = nvml.Devices();
  if (!devices.ok()) return {};
  std::vector<Nvml::Device> watched;
  for (Nvml::Device& device : *devices) {
    if (std::find(uuids_.begin(), uuids_.end(), device.uuid) != uuids_.end()) {
      watched.push_back(std::move(device));
    }
  }
  return watched;
}

void UsageSampler::Sample(const Nvml* nvml, absl::Time now) {
  AgentHeartbeat figures;
  std::map<int64_t, int64_t> gpu_bytes;
  if (nvml != nullptr) {
    for (const Nvml::Device& device : Watched(*nvml)) {
      *figures.add_gpus() = UsageOf(*nvml, device);
      for (const auto& [pid, bytes] : nvml->Processes(device)) gpu_bytes[pid] += bytes;
    }
  }
  absl::MutexLock lock(&mu_);
  std::map<std::string, std::pair<double, absl::Time>> seen;
  for (const auto& [incarnation, pid] : pids_) {
    const ProcessTimes times = TimesOf(pid);
    ProcessUsage& usage = *figures.add_workers();
    usage.set_worker_incarnation(incarnation);
    usage.set_rss_bytes(times.rss_bytes);
    if (const auto bytes = gpu_bytes.find(pid); bytes != gpu_bytes.end()) {
      usage.set_gpu_bytes(bytes->second);
    }
    const auto before = before_.find(incarnation);
    if (before != before_.end() && now > before->second.second) {
      const double seconds = absl::ToDoubleSeconds(now - before->second.second);
      const double used = std::max(0.0, times.cpu_seconds - before->second.first);
      usage.set_cpu_percent(100 * used / seconds);
    }
    seen[incarnation] = {times.cpu_seconds, now};
  }
  before_ = std::move(seen);
  latest_ = std::move(figures);
}

void UsageSampler::Run() {
  std::unique_ptr<Nvml> nvml;
  if (!uuids_.empty()) {
    absl::StatusOr<std::unique_ptr<Nvml>> opened = Nvml::Open();
    if (opened.ok()) nvml = *std::move(opened);
  }
  while (true) {
    Sample(nvml.get(), Clock::Real()->Now());
    absl::MutexLock lock(&mu_);
    const auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; };
    if (stopped_.AwaitFor(&mu_, kEvery, stop)) return;
  }
}

}  // namespace lockstep::launcher
