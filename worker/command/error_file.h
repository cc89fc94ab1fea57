// SPDX-License-Identifier: Apache-2.0
// The file in which a Python command says why it failed (torch.distributed.elastic's `record`
// writes it where TORCHELASTIC_ERROR_FILE says). Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_COMMAND_ERROR_FILE_H_
#define LOCKSTEP_WORKER_COMMAND_ERROR_FILE_H_

#include <string>
#include <string_view>

namespace lockstep::worker {

// The message in the text of such a file: {"message": "..."} or {"message": {"message": "..."}}.
// At most 1000 bytes of it; empty when there is none, whatever the text is.
std::string ErrorMessage(std::string_view text);
// The same of a file, of which 1 MiB is read; empty when it is not there.
std::string ReadErrorFile(const std::string& path);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_ERROR_FILE_H_
