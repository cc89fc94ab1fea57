// SPDX-License-Identifier: Apache-2.0
// A YAML document as a plain tree with the place of every node. The parser library stays behind
// this header: its types and exceptions are seen in yaml_tree.cc alone. Thread-safety: pure
// functions on values.
#ifndef LOCKSTEP_JOB_YAML_TREE_H_
#define LOCKSTEP_JOB_YAML_TREE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::job {

// Where a node begins: line and byte within the line, both from 0; `source` tells which text (0 the
// file, k the k-th --set); `width` is in bytes of that line.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;
  int width = 1;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;    // of a scalar
  bool plain = false;  // the scalar is written without quotes or a block sign
  Place place;
  std::vector<YamlNode> items;     // of a list
  std::vector<YamlEntry> entries;  // of a map, in the order of the text, duplicates included

  // The first entry with this key, or null. Valid until the map changes.
  YamlEntry* Find(absl::string_view key);
  const YamlEntry* Find(absl::string_view key) const;
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

struct YamlProblem {
  Place place;
  std::string message;
};

struct YamlDocument {
  bool empty = true;  // no document, or one with nothing in it
  YamlNode root;
  std::vector<YamlProblem> problems;
};

// A document may grow to so many nodes when its aliases are replaced by what they stand for.
inline constexpr int kMaxYamlNodes = 20000;
inline constexpr int kMaxYamlDepth = 64;
inline constexpr size_t kMaxYamlBytes = 1 << 20;
// And by so many bytes of text.
inline constexpr size_t kMaxAliasedBytes = 4 * kMaxYamlBytes;

// Reads one document. Everything that can be wrong with the text as YAML comes back as problems:
// syntax, encoding, size, nesting, a second document, tags. Aliases are replaced by copies.
YamlDocument ParseYaml(absl::string_view text, int source);

// Returns how many spaces and tabs a line begins with.
size_t Indentation(absl::string_view line);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_YAML_TREE_H_
