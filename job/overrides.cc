// SPDX-License-Identifier: Apache-2.0
#include "job/overrides.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/printable.h"
#include "google/protobuf/descriptor.h"
#include "job/decode.h"
#include "job/schema.h"
#include "proto/job.pb.h"

namespace lockstep::job {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// One step of a path: the name, and the names that it replaces.
struct Step {
  std::string name;
  size_t offset = 0;  // in the flag's text
  std::vector<std::string> replaced;
  bool in_map = false;  // the name of a variable, whose text may be empty
};

struct Override {
  std::vector<Step> path;
  YamlNode value;
};

std::vector<std::string> ReplacedBy(const Descriptor& type, const std::string& name) {
  for (const Group& group : GroupsOf(type)) {
    if (std::find(group.fields.begin(), group.fields.end(), name) == group.fields.end()) continue;
    std::vector<std::string> others = group.fields;
    std::erase(others, name);
    return others;
  }
  return {};
}

// Follows `text` through the descriptors. Returns whether the path exists.
bool ParsePath(int set, absl::string_view text, std::vector<Step>* path, Reporter* reporter) {
  const Descriptor* type = JobSpec::descriptor();
  // It may stand beside `run` in a file, too.
  if (text == "setup") {
    *path = {{"run", 0, {}}, {"setup", 0, {}}};
    return true;
  }
  std::string walked;
  size_t offset = 0;
  for (bool more = true; more;) {
    const size_t dot = text.find('.', offset);
    more = dot != absl::string_view::npos;
    std::string name(text.substr(offset, more ? dot - offset : absl::string_view::npos));
    const std::vector<std::string> names = FieldNames(*type);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string owner = walked.empty() ? "the job file" : absl::StrCat("'", walked, "'");
      reporter->SetError(
          set, offset, std::max<size_t>(1, name.size()),
          absl::StrCat("unknown key '", Printable(name), "' in ", owner, SuggestKey(name, names)));
      return false;
    }
    const FieldDescriptor& field = *type->FindFieldByName(name);
    path->push_back({name, offset, ReplacedBy(*type, name)});
    absl::StrAppend(&walked, walked.empty() ? "" : ".", name);
    if (!more) break;
    offset = dot + 1;
    if (field.is_map()) {
      // Names of variables have no dots: the rest is one.
      path->push_back({std::string(text.substr(offset)), offset, {}, /*in_map=*/true});
      return true;
    }
    if (field.message_type() == nullptr || IsDuration(field)) {
      reporter->SetError(
          set, offset, text.size() - offset,
          absl::StrCat("'", walked, "' is a single ",
                       field.is_repeated() ? "list, set whole" : "value", "; nothing is below it"));
      return false;
    }
    type = field.message_type();
  }
  return true;
}

constexpr absl::string_view kBlanks = " \t\r\n";

// Returns whether `text` begins with a tag that says nothing of a value: "!", or one without a
// value behind it.
bool HasVainTag(absl::string_view text) {
  if (text[0] != '!') return false;
  const size_t end = text.find_first_of(kBlanks);
  const size_t value = text.find_first_not_of(kBlanks, end);
  return end == 1 || value == absl::string_view::npos || text[value] == '#';
}

// Returns where in `value`, which has been read as `node`, there begins what YAML leaves out of it:
// a comment, an anchor, which nothing refers to, or a tag that says nothing. npos: nowhere.
size_t LeftOut(absl::string_view value, const YamlNode& node) {
  const bool null = node.kind == YamlNode::Kind::kNull;
  if (!null && node.kind != YamlNode::Kind::kScalar) return absl::string_view::npos;
  const size_t begin = value.find_first_not_of(kBlanks);
  if (begin == absl::string_view::npos) return begin;
  if (value[begin] == '&' || HasVainTag(value.substr(begin))) return begin;
  if (!null && !node.plain) return absl::string_view::npos;
  if (value[begin] == '#') return begin;
  for (size_t at = value.find('#'); at != absl::string_view::npos; at = value.find('#', at + 1)) {
    if (at > 0 && kBlanks.find(value[at - 1]) != absl::string_view::npos) return at;
  }
  return absl::string_view::npos;
}

bool ParseSet(int set, const std::string& text, Override* parsed, Reporter* reporter) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    reporter->SetError(set, 0, std::max<size_t>(1, text.size()),
                       "expected path=value, such as train.epochs=10");
    return false;
  }
  if (!ParsePath(set, absl::string_view(text).substr(0, equals), &parsed->path, reporter)) {
    return false;
  }
  // The path is blanked out, so that the places in the value are places in the flag.
  std::string value = std::string(equals + 1, ' ') + text.substr(equals + 1);
  YamlDocument document = ParseYaml(value, set + 1);
  for (const YamlProblem& problem : document.problems) {
    reporter->Error(problem.place, problem.message);
  }
  if (!document.problems.empty()) return false;
  const absl::string_view given = absl::string_view(text).substr(equals + 1);
  if (const size_t at = LeftOut(given, document.root); at != absl::string_view::npos) {
    const bool begins = given.find_first_not_of(kBlanks) == at;
    const absl::string_view before = absl::string_view(text).substr(0, equals + 1 + at);
    const size_t line = before.rfind('\n') + 1;  // npos + 1 is the beginning
    reporter->Error(
        {set + 1, static_cast<int>(std::count(before.begin(), before.end(), '\n')),
         static_cast<int>(before.size() - line), static_cast<int>(given.size() - at)},
        begins ? "a value that begins with '#', '&' or '!' has to be in quotes"
               : "what follows ' #' is a comment: a value that has it in it has to be in quotes");
    return false;
  }
  CheckDuplicates(document.root, reporter);
  parsed->value = std::move(document.root);
  if (parsed->path.back().in_map && equals + 1 == text.size()) {
    parsed->value.kind = YamlNode::Kind::kScalar;
  }
  return true;
}

YamlNode KeyNode(const Step& step, int set) {
  YamlNode key;
  key.kind = YamlNode::Kind::kScalar;
  key.text = step.name;
  key.plain = true;
  key.place = {set + 1, 0, static_cast<int>(step.offset), static_cast<int>(step.name.size())};
  return key;
}

void Erase(YamlNode* map, const std::string& name) {
  std::erase_if(map->entries, [&](const YamlEntry& entry) {
    return entry.key.kind == YamlNode::Kind::kScalar && entry.key.text == name;
  });
}

void Apply(int set, Override parsed, YamlNode* root) {
  YamlNode* node = root;
  for (size_t i = 0; i < parsed.path.size(); ++i) {
    const Step& step = parsed.path[i];
    const bool last = i + 1 == parsed.path.size();
    if (node->kind != YamlNode::Kind::kMap) {
      // What stood here is no mapping; the flag wins.
      node->kind = YamlNode::Kind::kMap;
      node->entries.clear();
    }
    if (last && parsed.value.kind == YamlNode::Kind::kNull) return Erase(node, step.name);
    for (const std::string& other : step.replaced) Erase(node, other);
    YamlEntry* entry = node->Find(step.name);
    if (entry == nullptr) {
      node->entries.push_back({KeyNode(step, set), YamlNode{}});
      entry = &node->entries.back();
      entry->value.place = entry->key.place;
    }
    if (last) {
      entry->key = KeyNode(step, set);
      const YamlNode old = std::exchange(entry->value, std::move(parsed.value));
      // Another command leaves the setup, wherever it stood, as a file's own would beside it.
      if (i == 0 && step.name == "run" && entry->value.Find("setup") == nullptr) {
        if (const YamlEntry* setup = old.Find("setup"); setup != nullptr) {
          root->entries.push_back(*setup);
        }
      }
      return;
    }
    // A command written short takes the form that has room for more.
    if (step.name == "run" && i == 0) ExpandRun(root);
    node = &node->Find(step.name)->value;
  }
}

}  // namespace

void ExpandRun(YamlNode* root) {
  YamlEntry* run = root->Find("run");
  if (run == nullptr) return;
  if (run->value.kind == YamlNode::Kind::kScalar || run->value.kind == YamlNode::Kind::kList) {
    YamlNode expanded;
    expanded.kind = YamlNode::Kind::kMap;
    expanded.place = run->value.place;
    YamlNode command = run->key;
    command.text = "command";
    expanded.entries.push_back({std::move(command), std::move(run->value)});
    run->value = std::move(expanded);
  }
  const YamlEntry* setup = root->Find("setup");
  if (setup == nullptr || run->value.kind != YamlNode::Kind::kMap) return;
  // One that is there already came by a flag, which wins.
  if (run->value.Find("setup") == nullptr) run->value.entries.push_back(*setup);
  Erase(root, "setup");
}

void CheckSetup(const YamlNode& root, Reporter* reporter) {
  const YamlEntry* run = root.Find("run");
  const YamlEntry* beside = root.Find("setup");
  const YamlEntry* inside = run == nullptr ? nullptr : run->value.Find("setup");
  if (beside == nullptr || inside == nullptr) return;
  reporter->Error(beside->key.place, absl::StrCat("'setup' stands beside 'run' and, on line ",
                                                  inside->key.place.line + 1, ", in it; keep one"));
}

void ExpandProcs(YamlNode* root, Reporter* reporter) {
  YamlEntry* resources = root->Find("resources");
  if (resources == nullptr || resources->value.kind != YamlNode::Kind::kMap) return;
  YamlEntry* procs = resources->value.Find("nproc_per_node");
  if (procs == nullptr || procs->value.kind != YamlNode::Kind::kScalar) return;
  const std::string& word = procs->value.text;
  const bool counts = word == "gpu" || word == "cpu" || word == "auto";
  const YamlEntry* by = resources->value.Find("nproc_by");
  // Of two that are not of one source, the later flag's wins.
  if (by != nullptr && by->key.place.source < procs->key.place.source) {
    Erase(&resources->value, "nproc_by");
    procs = resources->value.Find("nproc_per_node");
  } else if (by != nullptr && counts && by->key.place.source > procs->key.place.source) {
    return Erase(&resources->value, "nproc_per_node");
  } else if (by != nullptr && counts) {
    reporter->Error(procs->key.place, absl::StrCat("'nproc_per_node: ", word,
                                                   "' stands beside 'nproc_by'; both say how many ",
                                                   "workers each host has, keep one"));
  }
  if (counts) procs->key.text = "nproc_by";
}

void ApplyOverrides(const std::vector<std::string>& sets, YamlNode* root, Reporter* reporter) {
  for (size_t i = 0; i < sets.size(); ++i) {
    Override parsed;
    const int set = static_cast<int>(i);
    if (!ParseSet(set, sets[i], &parsed, reporter)) continue;
    Apply(set, std::move(parsed), root);
  }
}

}  // namespace lockstep::job
