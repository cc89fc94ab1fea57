// SPDX-License-Identifier: Apache-2.0
// What job.proto's descriptors cannot say about a field of the job file: units, ranges, allowed
// values, defaults, what is required. A field without a rule is read by its type alone.
// Thread-safety: constant tables.
#ifndef LOCKSTEP_JOB_SCHEMA_H_
#define LOCKSTEP_JOB_SCHEMA_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/descriptor.h"

namespace lockstep::job {

// How the text of a field is meant.
enum class Form {
  kPlain,      // by the field's type
  kSize,       // an integer written as a size
  kEvery,      // "500 steps", "1 epoch", "30s"
  kEveryEval,  // "500 steps", "1 epoch", "never"
  kName,       // letters, digits, '-', '_', '.'; at most 63
  kDevice,     // auto, cpu, cuda, cuda:N
  kSteps,      // "10:20", "10:", "all"
  kVariable,   // the keys of a map are names of environment variables
  kPath,       // a file or folder, taken as it is written
  kNcclNames,  // 'choices' in any case, as NCCL lists them: "a,b", "^a", "function:a;function:b"
};

struct FieldRule {
  absl::string_view field;  // "Train.global_batch"
  Form form = Form::kPlain;
  // Bounds of numbers (of the elements of a list; seconds for durations).
  double min = -1e300;
  double max = 1e300;
  bool min_excluded = false;
  bool max_excluded = false;
  bool required = false;
  std::vector<int64_t> among = {};  // of the numbers within the bounds these alone; empty: all
  absl::string_view fallback =
      {};  // the default as YAML text; empty: none, or computed in resolve.cc
  std::vector<std::string> choices = {};
  bool optional = false;  // absent unless written: neither defaults nor the resolved file make it
};

// Fields of a message of which exactly one is given, beside the oneofs.
struct Alternatives {
  absl::string_view message;
  std::vector<std::string> fields;
};

// The rule of a field; an empty one when the table has none.
const FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);
absl::Span<const FieldRule> AllRules();

// The exclusive groups of a message: its oneofs and the table's alternatives.
struct Group {
  std::vector<std::string> fields;
  bool required = false;
};
// All groups of `message`, those of the table last.
std::vector<Group> GroupsOf(const google::protobuf::Descriptor& message);
// The table's rows; they live for ever.
absl::Span<const Alternatives> AllAlternatives();

// The precisions that this version trains in.
const std::vector<std::string>& SupportedPrecisions();

bool IsDuration(const google::protobuf::FieldDescriptor& field);
// The names of a message's fields, in the order of the proto.
std::vector<std::string> FieldNames(const google::protobuf::Descriptor& message);
// Paths such as "train" under which a field of this name exists anywhere in the job file.
std::vector<std::string> ParentsOfField(absl::string_view name);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_SCHEMA_H_
