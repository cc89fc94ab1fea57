// SPDX-License-Identifier: Apache-2.0
// The answer to `launcher doctor`. Thread-safety: called by main.
#ifndef LOCKSTEP_WORKER_COMMANDS_DOCTOR_H_
#define LOCKSTEP_WORKER_COMMANDS_DOCTOR_H_

namespace lockstep::worker {

// Prints what this host has for training, as a table or one JSON object; says whether a job with
// device: cuda could run here.
bool AnswerDoctor(bool json);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_DOCTOR_H_
