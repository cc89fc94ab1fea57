// SPDX-License-Identifier: Apache-2.0
// Where a library of CUDA's may lie that is loaded at run time. Thread-safety: thread-safe while
// nobody changes the environment.
#ifndef LOCKSTEP_COMMON_CUDA_LIBRARIES_H_
#define LOCKSTEP_COMMON_CUDA_LIBRARIES_H_

#include <string>
#include <vector>

namespace lockstep {

// Paths for dlopen, in the order in which they are tried: what the environment's `variable` names
// (empty: none), else `file` by the loader, in $LOCKSTEP_CUDA_LIBRARIES, in the CUDA toolkit and in
// the folder nvidia/`wheel`/lib of Python's packages ($VIRTUAL_ENV, $CONDA_PREFIX, the prefix of
// the first python3 on the path, ~/.local, the system's). Root leaves ~/.local out where $HOME is
// another user's, who could have put anything there.
std::vector<std::string> CudaLibraryPaths(const char* variable, const std::string& file,
                                          const std::string& wheel);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CUDA_LIBRARIES_H_
