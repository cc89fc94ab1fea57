// SPDX-License-Identifier: Apache-2.0
// From the YAML tree to JobSpec, along the descriptors of job.proto: a new field of the proto needs
// no code here, a new rule in schema.cc only where its type does not say enough. Thread-safety:
// pure functions.
#ifndef LOCKSTEP_JOB_DECODE_H_
#define LOCKSTEP_JOB_DECODE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "job/reporter.h"
#include "job/yaml_tree.h"

namespace lockstep::job {

// The entries of the tree by path ("train.global_batch"). Valid while the tree is unchanged.
using Written = std::map<std::string, const YamlEntry*, std::less<>>;

// Where an error about the value of `entry` points: its key when there is no value.
const Place& ValuePlace(const YamlEntry& entry);

// Reports every key that a map holds twice, anywhere in the tree.
void CheckDuplicates(const YamlNode& node, Reporter* reporter);

// Reads the map `root` into `message` and reports what does not fit. What was right is set.
Written DecodeJob(const YamlNode& root, google::protobuf::Message* message, Reporter* reporter);

// Returns what is said of an unknown key of a mapping that has `names`: "; did you mean 'x'?" (and
// what x means else than another tool's key of that name), or where it belongs, or what the mapping
// takes.
std::string SuggestKey(absl::string_view key, const std::vector<std::string>& names);

// Sets `field` from one scalar of YAML (an element, for a repeated field). Empty on success, else
// what was expected.
std::string DecodeScalar(google::protobuf::Message* message,
                         const google::protobuf::FieldDescriptor& field, const YamlNode& node);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_DECODE_H_
