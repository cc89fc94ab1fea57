// SPDX-License-Identifier: Apache-2.0
#include "job/yaml_tree.h"

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/utf8.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace lockstep::job {
namespace {

// Leaves the parser from inside an event; caught in ParseYaml.
struct Stop : std::exception {};

std::vector<absl::string_view> SplitLines(absl::string_view text) {
  std::vector<absl::string_view> lines;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = text.find('\n', begin);
    if (end == absl::string_view::npos) end = text.size();
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int CountNodes(const YamlNode& node) {
  int count = 1;
  for (const YamlNode& item : node.items) count += CountNodes(item);
  for (const YamlEntry& entry : node.entries) {
    count += CountNodes(entry.key) + CountNodes(entry.value);
  }
  return count;
}

size_t CountText(const YamlNode& node) {
  size_t bytes = node.text.size();
  for (const YamlNode& item : node.items) bytes += CountText(item);
  for (const YamlEntry& entry : node.entries) {
    bytes += CountText(entry.key) + CountText(entry.value);
  }
  return bytes;
}

int Depth(const YamlNode& node) {
  int depth = 0;
  for (const YamlNode& item : node.items) depth = std::max(depth, Depth(item));
  for (const YamlEntry& entry : node.entries) {
    depth = std::max({depth, Depth(entry.key), Depth(entry.value)});
  }
  return depth + 1;
}

// Builds the tree from the parser's events.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(absl::string_view text, int source, YamlDocument* document)
      : text_(text), lines_(SplitLines(text)), source_(source), document_(document) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) {
      first_column_ = At(mark).column;
      return;
    }
    const Place place = At(mark);
    const bool marked = absl::StartsWith(Line(place), "---");
    Fail(place, marked || place.column >= first_column_
                    ? "a second document; a job file holds one job"
                    : "not valid YAML: this line is indented less than the first key of the file");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.place = At(mark);
    Add(std::move(node), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Place place = At(mark);
    place.width = WordWidth(place);
    auto found = anchors_.find(anchor);
    if (found == anchors_.end()) Fail(place, "this alias stands inside the node that it names");
    nodes_ += CountNodes(found->second) - 1;
    aliased_bytes_ += CountText(found->second);
    if (nodes_ > kMaxYamlNodes || aliased_bytes_ > kMaxAliasedBytes) {
      Fail(place, "the aliases of this file expand to too much");
    }
    if (static_cast<int>(stack_.size()) + Depth(found->second) > kMaxYamlDepth) {
      Fail(place, "nested too deeply");
    }
    YamlNode copy = found->second;
    copy.place = place;
    Add(std::move(copy), YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.text = value;
    node.plain = tag == "?" || tag.empty();
    node.place = At(mark);
    node.place.width = ScalarWidth(node.place, value);
    CheckTag(tag, node.place);
    if (const char quote = UnclosedQuote(node.place); !node.plain && quote != 0) {
      Fail(node.place, absl::StrCat("not valid YAML: a text opened with ",
                                    absl::string_view(&quote, 1), " is not closed"));
    }
    // Paths, words and variables end where the system sees one.
    if (absl::StrContains(value, '\0')) {
      document_->problems.push_back(
          {node.place,
           "this text has a NUL character (\\0), which no path, word or variable can have"});
    }
    Add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

  Place At(const YAML::Mark& mark) const {
    Place place;
    place.source = source_;
    place.line = std::clamp(mark.line, 0, static_cast<int>(lines_.size()) - 1);
    const int length = static_cast<int>(lines_[place.line].size());
    place.column = mark.line > place.line ? length : std::clamp(mark.column, 0, length);
    return place;
  }

  absl::string_view Line(const Place& place) const { return lines_[place.line]; }
  // Moves `place`, where the parser found no key, to the line that looks like one without its ': ',
  // which is that line or the one before it. Returns whether there is one.
  bool FindKeyWithoutColon(Place* place) const;
  // Moves `place`, where the parser found no key, to the line of a text behind '|' or '>' that is
  // indented less than the text's first one and so ended it, which is that line or the one before
  // it. Returns whether there is one.
  bool FindEndedText(Place* place) const;

 private:
  struct Frame {
    YamlNode node;
    YAML::anchor_t anchor;
    bool has_key = false;
    YamlNode key;
  };

  [[noreturn]] void Fail(const Place& place, std::string message) {
    document_->problems.push_back({place, std::move(message)});
    throw Stop();
  }

  void CheckTag(const std::string& tag, const Place& place) {
    if (tag.empty() || tag == "?" || tag == "!" || tag == "tag:yaml.org,2002:str" ||
        tag == "tag:yaml.org,2002:map" || tag == "tag:yaml.org,2002:seq") {
      return;
    }
    document_->problems.push_back({place, "YAML tags have no meaning in a job file"});
  }

  // The line before `line` that has more than a comment, or -1.
  int LineBefore(int line) const {
    while (--line >= 0) {
      const absl::string_view text = absl::StripAsciiWhitespace(lines_[line]);
      if (!text.empty() && text[0] != '#') break;
    }
    return line;
  }

  absl::string_view Rest(const Place& place) const {
    return lines_[place.line].substr(std::min<size_t>(place.column, lines_[place.line].size()));
  }

  // Up to the next separator.
  int WordWidth(const Place& place) const {
    const size_t end = Rest(place).find_first_of(" \t\r,]}:");
    const size_t width = end == absl::string_view::npos ? Rest(place).size() : end;
    return std::max<int>(1, static_cast<int>(width));
  }

  int ScalarWidth(const Place& place, const std::string& value) const {
    const absl::string_view rest = Rest(place);
    if (!value.empty() && absl::StartsWith(rest, value)) return static_cast<int>(value.size());
    if (!rest.empty() && (rest[0] == '"' || rest[0] == '\'')) {
      for (size_t i = 1; i < rest.size(); ++i) {
        if (rest[i] == '\\' && rest[0] == '"') {
          ++i;
        } else if (rest[i] == rest[0]) {
          return static_cast<int>(i) + 1;
        }
      }
      return static_cast<int>(rest.size());
    }
    return WordWidth(place);
  }

  // The quote that begins the text at `place`, behind its anchor and tag, and does not end it. The
  // parser takes the end of the file for its end, and so all of the file for the text. 0: none.
  char UnclosedQuote(const Place& place) const {
    absl::string_view rest = text_.substr(static_cast<size_t>(Rest(place).data() - text_.data()));
    while (!rest.empty() && (rest[0] == '&' || rest[0] == '!')) {
      rest.remove_prefix(std::min(rest.find_first_of(" \t\r\n"), rest.size()));
      rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    }
    if (rest.empty() || (rest[0] != '"' && rest[0] != '\'')) return 0;
    const char quote = rest[0];
    for (size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == '\\' && quote == '"') {
        ++i;
      } else if (rest[i] == quote) {
        if (quote == '"' || rest.substr(i + 1, 1) != "'") return 0;
        ++i;
      }
    }
    return quote;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Frame frame;
    frame.node.kind = kind;
    frame.node.place = At(mark);
    frame.anchor = anchor;
    CheckTag(tag, frame.node.place);
    if (static_cast<int>(stack_.size()) >= kMaxYamlDepth) {
      Fail(frame.node.place, "nested too deeply");
    }
    stack_.push_back(std::move(frame));
  }

  void Close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    Add(std::move(frame.node), frame.anchor);
  }

  // A node is complete: into its parent with it.
  void Add(YamlNode node, YAML::anchor_t anchor) {
    if (++nodes_ > kMaxYamlNodes) Fail(node.place, "this file is too large for a job");
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (stack_.empty()) {
      document_->empty = node.kind == YamlNode::Kind::kNull;
      document_->root = std::move(node);
      return;
    }
    Frame& parent = stack_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      parent.key = std::move(node);
      parent.has_key = true;
    } else {
      parent.node.entries.push_back({std::move(parent.key), std::move(node)});
      parent.has_key = false;
    }
  }

  const absl::string_view text_;
  const std::vector<absl::string_view> lines_;
  const int source_;
  YamlDocument* const document_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  int nodes_ = 0;
  size_t aliased_bytes_ = 0;
  int documents_ = 0;
  int first_column_ = 0;  // of the first document
};

bool TreeBuilder::FindKeyWithoutColon(Place* place) const {
  int line = place->line;
  for (int tries = 0; tries < 2 && line >= 0; ++tries, line = LineBefore(line)) {
    const absl::string_view text = absl::StripAsciiWhitespace(lines_[line]);
    if (absl::StrContains(text, ": ") || absl::EndsWith(text, ":")) continue;
    // No key: an item, a text in quotes, the middle of a list.
    if (text.empty() || absl::StrContains("#-?[]{},\"'&*!|>%@`", text.substr(0, 1)) ||
        absl::StrContains(",[]{}", text.substr(text.size() - 1))) {
      return false;
    }
    // More of the text that the line before it begins.
    const size_t indentation = Indentation(lines_[line]);
    const int before = LineBefore(line);
    if (before >= 0 && Indentation(lines_[before]) < indentation &&
        !absl::EndsWith(absl::StripAsciiWhitespace(lines_[before]), ":")) {
      return false;
    }
    place->line = line;
    place->column = static_cast<int>(indentation);
    place->width = static_cast<int>(text.size());
    return true;
  }
  return false;
}

// Returns whether the value on the line is a text of the lines below it.
bool BeginsBlockText(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line.substr(0, line.find(" #")));
  if (const size_t colon = line.rfind(": "); colon != absl::string_view::npos) {
    line = absl::StripLeadingAsciiWhitespace(line.substr(colon + 2));
  }
  while (absl::ConsumePrefix(&line, "- ")) line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "|") && !absl::ConsumePrefix(&line, ">")) return false;
  return line.find_first_not_of("+-0123456789") == absl::string_view::npos;
}

bool TreeBuilder::FindEndedText(Place* place) const {
  int line = place->line;
  for (int tries = 0; tries < 2 && line >= 0; ++tries, line = LineBefore(line)) {
    const size_t indentation = Indentation(lines_[line]);
    int first = line, above = LineBefore(line);
    while (above >= 0 && Indentation(lines_[above]) >= indentation) {
      first = above;
      above = LineBefore(above);
    }
    if (above < 0 || !BeginsBlockText(lines_[above])) continue;
    if (Indentation(lines_[first]) <= indentation) continue;
    place->line = line;
    place->column = static_cast<int>(indentation);
    place->width = static_cast<int>(absl::StripAsciiWhitespace(lines_[line]).size());
    return true;
  }
  return false;
}

// The parser's terse words, made plain where users meet them often. `rest`: of the line, from the
// place on.
std::string Explain(const std::string& message, absl::string_view line, absl::string_view rest) {
  const absl::string_view indentation = line.substr(0, line.find_first_not_of(" \t"));
  if (absl::StrContains(message, "tab") || absl::StrContains(indentation, "\t")) {
    return "not valid YAML: a tab in the indentation; YAML indents with spaces";
  }
  if (absl::StrContains(message, "end of sequence flow")) {
    return "not valid YAML: a list opened with '[' is not closed with ']'";
  }
  if (absl::StrContains(message, "end of map flow")) {
    return "not valid YAML: a mapping opened with '{' is not closed with '}'";
  }
  if (absl::StrContains(message, "illegal map value")) {
    return "not valid YAML: a ':' where no key can stand; quote the text if it contains ': '";
  }
  if (absl::StrContains(message, "end of map not found")) {
    return "not valid YAML: this line fits neither the mapping before it nor its indentation";
  }
  if (absl::StrContains(message, "end of sequence not found")) {
    return "not valid YAML: this line fits neither the list before it nor its indentation";
  }
  if (absl::StrContains(message, "anchor is not defined")) {
    return "not valid YAML: a text that begins with '*' has to be in quotes; without them it "
           "stands "
           "for an anchor, and there is none of this name";
  }
  if (absl::StrContains(message, "unknown token") && !rest.empty()) {
    return absl::StrCat("not valid YAML: a text that begins with '", rest.substr(0, 1),
                        "' has to be in quotes");
  }
  return absl::StrCat("not valid YAML: ", message);
}

// Returns what is wrong where the parser gave up.
YamlProblem ProblemOf(const YAML::Exception& error, const TreeBuilder& builder) {
  Place place = builder.At(error.mark);
  const absl::string_view line = builder.Line(place);
  const absl::string_view rest = line.substr(std::min<size_t>(place.column, line.size()));
  std::string message = Explain(error.msg, line, rest);
  const bool no_key = absl::StrContains(error.msg, "illegal map value") ||
                      absl::StrContains(error.msg, "end of map not found");
  if (!no_key || absl::StrContains(message, "a tab")) return {place, std::move(message)};
  if (builder.FindEndedText(&place)) {
    message =
        "not valid YAML: this text is indented less than the first line behind '|' or '>' and so "
        "is no part of it";
  } else if (builder.FindKeyWithoutColon(&place)) {
    message = "not valid YAML: a key and its value have ': ' between them, and this line has none";
  }
  return {place, std::move(message)};
}

}  // namespace

size_t Indentation(absl::string_view line) {
  return std::min(line.find_first_not_of(" \t"), line.size());
}

YamlEntry* YamlNode::Find(absl::string_view key) {
  return const_cast<YamlEntry*>(std::as_const(*this).Find(key));
}

const YamlEntry* YamlNode::Find(absl::string_view key) const {
  for (const YamlEntry& entry : entries) {
    if (entry.key.kind == Kind::kScalar && entry.key.text == key) return &entry;
  }
  return nullptr;
}

YamlDocument ParseYaml(absl::string_view text, int source) {
  YamlDocument document;
  if (text.size() > kMaxYamlBytes) {
    document.problems.push_back(
        {{source, 0, 0, 1}, "this file is too large for a job (over 1 MiB)"});
    return document;
  }
  if (const size_t bad = FindBadText({text.data(), text.size()}); bad != std::string_view::npos) {
    const absl::string_view before = text.substr(0, bad);
    const size_t newline = before.rfind('\n');
    Place place;
    place.source = source;
    place.line = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    place.column = static_cast<int>(newline == absl::string_view::npos ? bad : bad - newline - 1);
    document.problems.push_back({place, "this byte is not text: job files are UTF-8"});
    return document;
  }
  TreeBuilder builder(text, source, &document);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
    // The problem is recorded.
  } catch (const YAML::Exception& error) {
    document.problems.push_back(ProblemOf(error, builder));
  } catch (const std::exception& error) {
    document.problems.push_back(
        {{source, 0, 0, 1}, absl::StrCat("not valid YAML: ", error.what())});
  }
  return document;
}

}  // namespace lockstep::job
