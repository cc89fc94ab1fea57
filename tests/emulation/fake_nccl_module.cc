// SPDX-License-Identifier: Apache-2.0
// The fake NCCL as a shared library: its functions have the names that the loader looks for.
#include "tests/emulation/fake_nccl.h"

// Keeps the linker from leaving them out.
extern "C" int lockstep_fake_nccl_version() { return lockstep::fake_nccl::Library().version; }
