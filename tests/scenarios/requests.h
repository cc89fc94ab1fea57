// SPDX-License-Identifier: Apache-2.0
// What users ask for by a script's commands, and what they are told.
//
//   submit J [nodes=1] [nproc=1] [shards=8] [priority=0] [detect=5s] [start=10m] [device=auto]
//          [mixed] [request=ID] [restarts=0] [min=N] [max=N] [standby=0] [resume=auto]
//          [ranks=3,1] [rank0=NODE] [by=gpu]
//   cancel J [kill]          scale J workers=N       hold J                  release J
//   drain NODE [reason="..."] [user=ann]             undrain NODE
//   quota [USER] [slots=N] [gpus=N] [jobs=N] [half=1h]
//   keep ended=N [for=5m] [node=1h]: what is forgotten (retention.h)
//   usage [USER]
//   describe J [all] [costs] what is told of its stall, its straggler, its moves and its faults,
//                            what its workers have of their nodes, and what its faults cost
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_SCENARIOS_REQUESTS_H_
#define LOCKSTEP_TESTS_SCENARIOS_REQUESTS_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/event.h"
#include "coordinator/core/options.h"
#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto);
// The request that the command is; nothing: it is none.
std::optional<Event> ParseRequest(const Command& command);
// Sets what a coordinator is started with, if the command says that.
bool SetOptions(const Command& command, Options& options);
// The answer, if the command is a question.
std::optional<std::vector<std::string>> Answered(const Command& command, const State& state,
                                                 absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_REQUESTS_H_
