// SPDX-License-Identifier: Apache-2.0
// Runs two variants of a job's plan on the same addressed micro-batch and finds the first node
// whose values differ. Variants share the graph that the passes began with, so values are matched
// exactly by their origin in it. Every value of the first variant is kept in memory meanwhile.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_COMMANDS_COMPARE_H_
#define LOCKSTEP_WORKER_COMMANDS_COMPARE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "proto/offline.pb.h"

namespace lockstep::worker {

// `spec` as the variant `name` has it: words joined by '+', of "fused", "unfused", "planned",
// "unplanned", "portable", "avx2", "avx512", "avx512_bf16", "pairs", "no_pairs". Errors:
// InvalidArgument with the words.
absl::StatusOr<engine::TrainSpec> VariantOf(const engine::TrainSpec& spec, const std::string& name);

struct Difference {
  bool found = false;
  std::string a_node, b_node;  // the nodes' texts
  int a_id = 0, b_id = 0;
  std::string name;     // of the layer or the gradient
  int64_t element = 0;  // the worst one
  double a = 0, b = 0;  // its values
  double largest = 0;   // of the tensor in variant a: what the tolerance is a share of
  int64_t over = 0;     // elements beyond the tolerance
  int64_t elements = 0;
};

struct Comparison {
  Difference first;      // the first node beyond the tolerance
  int64_t matched = 0;   // values that both variants have
  int64_t only_one = 0;  // values that one of them fuses away
  double worst = 0;      // share of the largest value over all matched values
};

// Runs `a` and `b` on `fields` (as for RunShard). Errors: InvalidArgument, ResourceExhausted.
absl::StatusOr<Comparison> Compare(const engine::TrainSpec& a, const engine::TrainSpec& b,
                                   int64_t step, int shard, engine::Fields fields,
                                   double tolerance);

// The verb: prints the comparison on stdout; `*differs` says how it went.
absl::Status AnswerCompare(const CompareRequest& request, bool json, bool* differs);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_COMPARE_H_
