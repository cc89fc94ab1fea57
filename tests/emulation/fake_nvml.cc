// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library for tests (LOCKSTEP_NVML_LIBRARY): a whole GPU, and one that is cut
// into two instances and not well. LOCKSTEP_FAKE_NVML_CPUS gives the CPUs near both, as bits of a
// number; with LOCKSTEP_FAKE_NVML_APART the GPUs cannot reach each other, with
// LOCKSTEP_FAKE_NVML_UNCUT the second has no instance although it is in that mode.
// LOCKSTEP_FAKE_NVML_LOST is the index of a GPU that is lost, LOCKSTEP_FAKE_NVML_FAILS the error
// that their count gives.
// LOCKSTEP_FAKE_NVML_DRIVER is the driver's version, LOCKSTEP_FAKE_NVML_CUDA the CUDA that its
// library runs. Thread-safety: thread-safe.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Fake {
  const char* uuid;
  const char* name;
  unsigned long long memory, used;
};
Fake devices[] = {{"GPU-aaaa", "Fake GPU", 80ULL << 30, 3ULL << 30},
                  {"GPU-bbbb", "Fake GPU", 80ULL << 30, 0},
                  {"MIG-b0", "Fake GPU MIG 1g.10gb", 10ULL << 30, 1ULL << 30},
                  {"MIG-b2", "Fake GPU MIG 2g.20gb", 20ULL << 30, 0}};

constexpr int kNotFound = 6, kNotSupported = 3, kLost = 15;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned gpu, memory;
};
struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
constexpr unsigned long kNearCpus = 0xf;
constexpr unsigned kLinks = 18, kLinksDown = 2;

bool IsWell(const void* device) { return device == &devices[0]; }
bool IsWhole(const void* device) { return device == &devices[0] || device == &devices[1]; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  const char* const given = std::getenv("LOCKSTEP_FAKE_NVML_DRIVER");
  std::snprintf(text, bytes, "%s", given == nullptr ? "580.1" : given);
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  const char* const given = std::getenv("LOCKSTEP_FAKE_NVML_CUDA");
  *version = given == nullptr ? 13000 : std::atoi(given);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (const char* const error = std::getenv("LOCKSTEP_FAKE_NVML_FAILS")) return std::atoi(error);
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  const char* const lost = std::getenv("LOCKSTEP_FAKE_NVML_LOST");
  if (lost != nullptr && std::atoi(lost) == static_cast<int>(index)) return kLost;
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "%s", static_cast<Fake*>(device)->uuid);
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "%s", static_cast<Fake*>(device)->name);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const auto* fake = static_cast<Fake*>(device);
  *memory = {fake->memory, fake->memory - fake->used, fake->used};
  return 0;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *current = *pending = device == &devices[1] ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned index, void** device) {
  if (index != 0 && index != 2) return kNotFound;
  if (std::getenv("LOCKSTEP_FAKE_NVML_UNCUT") != nullptr) return kNotFound;
  *device = &devices[index == 0 ? 2 : 3];
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilisation* utilisation) {
  if (!IsWhole(device)) return kNotSupported;
  *utilisation = {97, 40};
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 512300;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* celsius) {
  *celsius = 61;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1980 : 3201;
  return 0;
}
// The test's own process holds 2 GiB of the first.
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  *count = device == &devices[0] ? 1 : 0;
  if (*count == 1) processes[0] = {static_cast<unsigned>(::getpid()), 2ULL << 30, 0, 0};
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  *pci = {};
  pci->bus = IsWell(device) ? 0x3b : 0x9a;
  return 0;
}
int nvmlDeviceGetCpuAffinity(void*, unsigned words, unsigned long* mask) {
  std::memset(mask, 0, words * sizeof(*mask));
  const char* const given = std::getenv("LOCKSTEP_FAKE_NVML_CPUS");
  mask[0] = given == nullptr ? kNearCpus : std::strtoul(given, nullptr, 0);
  return 0;
}
int nvmlDeviceGetEccMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = 1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned kind, unsigned, unsigned long long* count) {
  *count = kind == 0 ? 5 : IsWell(device) ? 0 : 2;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* waits, unsigned* failed) {
  *corrected = *uncorrected = *failed = 0;
  *waits = IsWell(device) ? 0 : 1;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  if (link >= kLinks) return kNotFound;
  *active = IsWell(device) || link >= kLinksDown ? 1 : 0;
  return 0;
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 4;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, unsigned* level) {
  *level = 50;
  return 0;
}
int nvmlDeviceGetP2PStatus(void*, void*, unsigned, unsigned* status) {
  *status = std::getenv("LOCKSTEP_FAKE_NVML_APART") == nullptr ? 0 : 1;
  return 0;
}

}  // extern "C"
