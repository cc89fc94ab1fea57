// SPDX-License-Identifier: Apache-2.0
#include "job/decode.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "google/protobuf/map_field.h"
#include "job/names_elsewhere.h"
#include "job/nearest_name.h"
#include "job/schema.h"
#include "proto/job.pb.h"

namespace lockstep::job {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The user's words in a message: printable, and not a page of them.
std::string Quoted(const std::string& text) {
  std::string shown = Printable(text);
  if (CountCharacters(shown) > 60) {
    size_t end = 0;
    for (int i = 0; i < 60; ++i) {
      int bytes = 1;
      DecodeUtf8(std::string_view(shown).substr(end), &bytes);
      end += bytes;
    }
    shown = absl::StrCat(shown.substr(0, end), "...");
  }
  return absl::StrCat("'", shown, "'");
}

std::string Found(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kList:
      return node.items.empty() ? "an empty list" : "a list";
    case YamlNode::Kind::kMap:
      return "a mapping";
    case YamlNode::Kind::kScalar:
      return Quoted(node.text);
  }
  return "";
}

// Of "10:", which YAML takes for a key without a value.
std::string ColonAdvice(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap || node.entries.size() != 1) return "";
  const YamlEntry& entry = node.entries.front();
  if (entry.key.kind != YamlNode::Kind::kScalar || entry.value.kind != YamlNode::Kind::kNull) {
    return "";
  }
  return absl::StrCat("; a value that ends in ':' has to be in quotes, as \"",
                      Printable(entry.key.text), ":\"");
}

bool IsVariable(absl::string_view text) {
  if (text.empty() || absl::ascii_isdigit(text[0])) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

class Decoder {
 public:
  Decoder(Reporter* reporter, Written* written) : reporter_(*reporter), written_(*written) {}

  // `place` and `path` are those of the mapping itself.
  void DecodeMap(const YamlNode& node, const Place& place, const std::string& path,
                 Message* message);

 private:
  void DecodeField(const YamlEntry& entry, const std::string& path, const FieldDescriptor& field,
                   Message* message);
  void DecodeSubMessage(const YamlEntry& entry, const std::string& path,
                        const FieldDescriptor& field, Message* message);
  void DecodeRun(const YamlEntry& entry, const std::string& path, Run* run);
  void DecodeCommand(const YamlEntry& entry, Run* run);
  void DecodeVariables(const YamlEntry& entry, const std::string& path,
                       const FieldDescriptor& field, Message* message);
  void DecodeList(const YamlEntry& entry, const std::string& path, const FieldDescriptor& field,
                  Message* message);
  // One message of a list.
  void DecodeElement(const YamlNode& item, const std::string& path, const FieldDescriptor& field,
                     Message* message);
  // Returns the name that was probably meant, or nothing.
  std::string UnknownKey(const YamlNode& key, const std::string& path, const Descriptor& type);
  void CheckGiven(const std::set<std::string>& given, const std::set<std::string>& meant,
                  const YamlNode& node, const Place& place, const std::string& path,
                  const Descriptor& type);

  void Expected(const YamlEntry& entry, const std::string& path, absl::string_view what,
                absl::string_view advice = "") {
    reporter_.Error(ValuePlace(entry), absl::StrCat("'", path, "': expected ", what, ", found ",
                                                    Found(entry.value), advice));
  }

  Reporter& reporter_;
  Written& written_;
};

std::string Join(const std::string& path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

std::string Owner(const std::string& path) {
  return path.empty() ? "the job file" : absl::StrCat("'", path, "'");
}

void Decoder::DecodeMap(const YamlNode& node, const Place& place, const std::string& path,
                        Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  const std::vector<std::string> names = FieldNames(type);
  std::set<std::string> given, meant;
  for (const YamlEntry& entry : node.entries) {
    if (entry.key.kind != YamlNode::Kind::kScalar) {
      reporter_.Error(entry.key.place, absl::StrCat("a key of ", Owner(path), " must be a name"));
      continue;
    }
    const std::string& name = entry.key.text;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      meant.insert(UnknownKey(entry.key, path, type));
      continue;
    }
    if (!given.insert(name).second) continue;  // reported as a duplicate
    written_[Join(path, name)] = &entry;
    const FieldDescriptor& field = *type.FindFieldByName(name);
    DecodeField(entry, Join(path, name), field, message);
  }
  CheckGiven(given, meant, node, place, path, type);
}

std::string Decoder::UnknownKey(const YamlNode& key, const std::string& path,
                                const Descriptor& type) {
  std::string message = absl::StrCat("unknown key ", Quoted(key.text), " in ", Owner(path));
  const std::vector<std::string> names = FieldNames(type);
  absl::StrAppend(&message, key.text == "<<" ? "; merge keys are not supported, write the keys out"
                                             : SuggestKey(key.text, names));
  reporter_.Error(key.place, message);
  return NearestName(key.text, names);
}

void Decoder::CheckGiven(const std::set<std::string>& given, const std::set<std::string>& meant,
                         const YamlNode& node, const Place& place, const std::string& path,
                         const Descriptor& type) {
  const std::string owner = path.empty() ? "the job" : absl::StrCat("'", path, "'");
  for (const Group& group : GroupsOf(type)) {
    std::vector<std::string> present;
    bool misspelt = false;
    for (const std::string& field : group.fields) {
      if (given.count(field)) present.push_back(field);
      misspelt |= meant.count(field) > 0;
    }
    const std::string choices = absl::StrJoin(group.fields, ", ");
    if (present.size() > 1) {
      reporter_.Error(node.Find(present[1])->key.place,
                      absl::StrCat(owner, " has ", absl::StrJoin(present, " and "),
                                   "; give exactly one of ", choices));
    } else if (present.empty() && group.required && !misspelt) {
      reporter_.Error(place, group.fields.size() == 1
                                 ? absl::StrCat(owner, " needs ", choices)
                                 : absl::StrCat(owner, " needs exactly one of ", choices));
    }
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string& name = type.field(i)->name();
    if (!RuleOf(*type.field(i)).required || given.count(name) || meant.count(name)) continue;
    reporter_.Error(place, absl::StrCat(owner, " needs '", name, "'"));
  }
}

void Decoder::DecodeField(const YamlEntry& entry, const std::string& path,
                          const FieldDescriptor& field, Message* message) {
  if (field.is_map()) return DecodeVariables(entry, path, field, message);
  if (field.is_repeated()) return DecodeList(entry, path, field, message);
  if (field.message_type() != nullptr && !IsDuration(field)) {
    return DecodeSubMessage(entry, path, field, message);
  }
  if (entry.value.kind == YamlNode::Kind::kNull) {
    reporter_.Error(entry.key.place,
                    absl::StrCat("'", path, "' has no value; write one or remove the key"));
    return;
  }
  if (entry.value.kind != YamlNode::Kind::kScalar) {
    return Expected(entry, path, "a single value", ColonAdvice(entry.value));
  }
  const std::string error = DecodeScalar(message, field, entry.value);
  if (error.empty()) return;
  reporter_.Error(entry.value.place,
                  absl::StrCat("'", path, "' is ", Found(entry.value), ": ", error));
}

void Decoder::DecodeSubMessage(const YamlEntry& entry, const std::string& path,
                               const FieldDescriptor& field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (field.message_type() == Run::descriptor()) {
    DecodeRun(entry, path, static_cast<Run*>(reflection.MutableMessage(message, &field)));
    return;
  }
  if (entry.value.kind == YamlNode::Kind::kMap || entry.value.kind == YamlNode::Kind::kNull) {
    const Place& place = entry.key.place;
    DecodeMap(entry.value, place, path, reflection.MutableMessage(message, &field));
    return;
  }
  const std::vector<Group> groups = GroupsOf(*field.message_type());
  std::string what = "a mapping";
  if (groups.size() == 1 && groups[0].fields != std::vector<std::string>{"epochs", "steps"}) {
    const std::vector<std::string>& kinds = groups[0].fields;
    const bool known = std::find(kinds.begin(), kinds.end(), entry.value.text) != kinds.end();
    absl::StrAppend(&what, " such as {", known ? entry.value.text : kinds[0], ": {}}");
  }
  Expected(entry, path, what);
}

void Decoder::DecodeRun(const YamlEntry& entry, const std::string& path, Run* run) {
  if (entry.value.kind != YamlNode::Kind::kMap) return DecodeCommand(entry, run);
  DecodeMap(entry.value, entry.key.place, path, run);
}

// A text is for the shell, a list is run as it is.
void Decoder::DecodeCommand(const YamlEntry& entry, Run* run) {
  constexpr absl::string_view kWhat = "a command: text for the shell, or a list of words";
  if (entry.value.kind == YamlNode::Kind::kScalar && !entry.value.text.empty()) {
    run->add_command(entry.value.text);
    run->set_shell(true);
    return;
  }
  if (entry.value.kind != YamlNode::Kind::kList || entry.value.items.empty()) {
    return Expected(entry, "run", kWhat);
  }
  for (const YamlNode& word : entry.value.items) {
    if (word.kind == YamlNode::Kind::kScalar) {
      run->add_command(word.text);
    } else {
      reporter_.Error(word.place,
                      absl::StrCat("'run': expected a word, found ", Found(word), "; quote it"));
    }
  }
}

void Decoder::DecodeVariables(const YamlEntry& entry, const std::string& path,
                              const FieldDescriptor& field, Message* message) {
  if (entry.value.kind == YamlNode::Kind::kNull) return;
  if (entry.value.kind != YamlNode::Kind::kMap) {
    // What was found is not shown: it may be a secret.
    reporter_.Error(ValuePlace(entry),
                    absl::StrCat("'", path, "': expected a mapping from names to values"));
    return;
  }
  const Reflection& reflection = *message->GetReflection();
  std::set<std::string> given;
  for (const YamlEntry& variable : entry.value.entries) {
    const std::string& name = variable.key.text;
    if (variable.key.kind != YamlNode::Kind::kScalar || !IsVariable(name)) {
      reporter_.Error(variable.key.place,
                      absl::StrCat("'", path, "': ", Found(variable.key),
                                   " is no name of a variable (letters, digits, '_')"));
      continue;
    }
    if (!given.insert(name).second) continue;
    const bool empty = variable.value.kind == YamlNode::Kind::kNull;
    if (!empty && variable.value.kind != YamlNode::Kind::kScalar) {
      reporter_.Error(
          ValuePlace(variable),
          absl::StrCat("'", Join(path, name), "': expected text, found ", Found(variable.value)));
      continue;
    }
    written_[Join(path, name)] = &variable;
    Message* pair = reflection.AddMessage(message, &field);
    const Descriptor& type = *pair->GetDescriptor();
    pair->GetReflection()->SetString(pair, type.map_key(), name);
    pair->GetReflection()->SetString(pair, type.map_value(), variable.value.text);
  }
}

void Decoder::DecodeElement(const YamlNode& item, const std::string& path,
                            const FieldDescriptor& field, Message* message) {
  Message* element = message->GetReflection()->AddMessage(message, &field);
  if (item.kind == YamlNode::Kind::kMap) return DecodeMap(item, item.place, path, element);
  // A kind alone stands for one without keys: relu is {relu: {}}.
  const FieldDescriptor* kind = element->GetDescriptor()->FindFieldByName(item.text);
  if (item.kind == YamlNode::Kind::kScalar && kind != nullptr && kind->message_type() != nullptr) {
    YamlNode empty;
    empty.kind = YamlNode::Kind::kMap;
    DecodeMap(empty, item.place, Join(path, item.text),
              element->GetReflection()->MutableMessage(element, kind));
    return;
  }
  const Descriptor& type = *element->GetDescriptor();
  const std::string nearest = NearestName(item.text, FieldNames(type));
  const bool meant = !nearest.empty() && type.FindFieldByName(nearest)->message_type() != nullptr;
  reporter_.Error(item.place, absl::StrCat("'", path, "' is ", Found(item),
                                           meant ? absl::StrCat("; did you mean '", nearest, "'?")
                                                 : absl::StrCat(": expected a mapping such as {",
                                                                type.field(0)->name(), ": {}}")));
}

void Decoder::DecodeList(const YamlEntry& entry, const std::string& path,
                         const FieldDescriptor& field, Message* message) {
  if (field.containing_type() == Run::descriptor()) {
    return DecodeCommand(entry, static_cast<Run*>(message));
  }
  if (entry.value.kind != YamlNode::Kind::kList)
    return Expected(entry, path,
                    field.message_type() != nullptr ? "a list of mappings such as [{...}]"
                                                    : "a list such as [256]");
  for (size_t i = 0; i < entry.value.items.size(); ++i) {
    const YamlNode& item = entry.value.items[i];
    if (field.message_type() != nullptr) {
      DecodeElement(item, absl::StrCat(path, "[", i, "]"), field, message);
      continue;
    }
    std::string error = "expected a single value";
    if (item.kind == YamlNode::Kind::kScalar) error = DecodeScalar(message, field, item);
    if (error.empty()) continue;
    reporter_.Error(
        item.kind == YamlNode::Kind::kNull ? ValuePlace(entry) : item.place,
        absl::StrCat("element ", i + 1, " of '", path, "' is ", Found(item), ": ", error));
  }
}

// What is said behind the hint that `key` is called `here`: nothing, or what else that means.
std::string DifferenceAdvice(absl::string_view key, absl::string_view here) {
  const std::string difference = DifferenceHere(key, here);
  return difference.empty() ? "" : absl::StrCat(" (", difference, ")");
}

}  // namespace

std::string SuggestKey(absl::string_view key, const std::vector<std::string>& names) {
  if (const std::string nearest = NearestName(key, names); !nearest.empty()) {
    return absl::StrCat(Suggest(key, names, ""), DifferenceAdvice(key, nearest));
  }
  if (const std::vector<std::string> parents = ParentsOfField(key); !parents.empty()) {
    std::vector<std::string> places;
    for (const std::string& parent : parents) places.push_back(Owner(parent));
    return absl::StrCat("; it belongs in ", absl::StrJoin(places, " or "));
  }
  std::vector<std::string> elsewhere;  // keys of other mappings that other tools call so
  std::string differences;
  for (const std::string& here : NamesHere(key)) {
    absl::StrAppend(&differences, DifferenceAdvice(key, here));
    for (const std::string& parent : ParentsOfField(here)) elsewhere.push_back(Join(parent, here));
  }
  if (elsewhere.empty()) return Suggest(key, names, "it takes");
  return absl::StrCat("; did you mean '", absl::StrJoin(elsewhere, "' or '"), "'?", differences);
}

const Place& ValuePlace(const YamlEntry& entry) {
  return entry.value.kind == YamlNode::Kind::kNull ? entry.key.place : entry.value.place;
}

void CheckDuplicates(const YamlNode& node, Reporter* reporter) {
  std::map<std::string, int> lines;
  for (const YamlNode& item : node.items) CheckDuplicates(item, reporter);
  for (const YamlEntry& entry : node.entries) {
    CheckDuplicates(entry.value, reporter);
    if (entry.key.kind != YamlNode::Kind::kScalar) continue;
    const auto [first, fresh] = lines.emplace(entry.key.text, entry.key.place.line + 1);
    if (fresh) continue;
    const bool in_flag = entry.key.place.source > 0;
    reporter->Error(entry.key.place,
                    absl::StrCat("duplicate key ", Quoted(entry.key.text),
                                 in_flag ? "; keep one"
                                         : absl::StrCat("; the first is on line ", first->second)));
  }
}

Written DecodeJob(const YamlNode& root, Message* message, Reporter* reporter) {
  Written written;
  Decoder(reporter, &written).DecodeMap(root, root.place, "", message);
  return written;
}

}  // namespace lockstep::job
