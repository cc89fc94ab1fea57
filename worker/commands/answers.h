// SPDX-License-Identifier: Apache-2.0
// The verbs that answer one question with the engine and leave. Each prints its answer on stdout
// and blocks until it is through. Thread-safety: called by main.
#ifndef LOCKSTEP_WORKER_COMMANDS_ANSWERS_H_
#define LOCKSTEP_WORKER_COMMANDS_ANSWERS_H_

#include "absl/status/status.h"
#include "proto/offline.pb.h"

namespace lockstep::worker {

// Loss and accuracy of a saved model. Errors: those of SavedModel and the data.
absl::Status AnswerEval(const EvalRequest& request, bool json);

// Labels and probabilities of a saved model. Errors: those of SavedModel, the data, the out file.
absl::Status AnswerPredict(const PredictRequest& request);

// The text or tokens that a saved gpt goes on with, as they are made; with `json` one object at the
// end. Errors: those of SavedModel; InvalidArgument for a model that does not generate and a prompt
// that it cannot read.
absl::Status AnswerGenerate(const GenerateRequest& request, bool json);

// Times of the data plane's operations between forked ranks: a table, or with `json` one object.
// Errors: those of RunForked; DataLoss when a result is wrong.
absl::Status AnswerBenchCollectives(const BenchCollectivesRequest& request, bool json);

// `status` as the error of a word of the command line, which RunOffline ends with the launcher's
// code for these; OK stays OK.
absl::Status OfCommandLine(absl::Status status);

// The error of an answer that stdout did not take. `error`: errno. Returns Unavailable.
absl::Status ResultNotWritten(int error);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_ANSWERS_H_
