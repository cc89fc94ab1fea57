// SPDX-License-Identifier: Apache-2.0
// Bounds of what agents say of their nodes: it is kept, and told to all who ask.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_AGENT_WORDS_H_
#define LOCKSTEP_COORDINATOR_CORE_AGENT_WORDS_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// Returns what of the hello is missing or too long, and the bound in bytes; empty: nothing. Names
// and labels have 255 bytes at most, and a node has 256 labels at most.
std::string WhyMalformed(const AgentHello& hello);

// Returns the text, or its first 4096 bytes and that it was clipped; UTF-8 stays UTF-8.
std::string ClippedProblem(const std::string& problem);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_AGENT_WORDS_H_
