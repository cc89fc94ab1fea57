// SPDX-License-Identifier: Apache-2.0
// The GPUs of the emulated machine as CUDA numbers them in this process. Thread-safety:
// thread-safe.
#ifndef LOCKSTEP_TESTS_EMULATION_EMULATED_GPUS_H_
#define LOCKSTEP_TESTS_EMULATION_EMULATED_GPUS_H_

#include <array>
#include <string>
#include <vector>

namespace emulation {

// "GPU-01234567-89ab-..." of those in `all` that CUDA shows: in their order (or that of their
// buses, which is that of their names, when `order` is "PCI_BUS_ID"), of which `visible` leaves
// some, in its order: numbers, or beginnings of names, up to the first one that there is not. Null:
// not set.
std::vector<std::string> ShownGpus(const char* all, const char* order, const char* visible);

// Of LOCKSTEP_EMULATED_GPUS, CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES, as they are at the first
// call: CUDA reads them once. Without the first there is one GPU without a name.
const std::vector<std::string>& Gpus();

// The bytes of a name; zeros where it is none.
std::array<char, 16> UuidOf(const std::string& name);

}  // namespace emulation

#endif  // LOCKSTEP_TESTS_EMULATION_EMULATED_GPUS_H_
