// SPDX-License-Identifier: Apache-2.0
// JobSpec to text: YAML that reads back as the same spec, and JSON.
#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "google/protobuf/duration.pb.h"
#include "job/job_file.h"
#include "job/meaning/units.h"
#include "job/meaning/workers.h"
#include "job/schema.h"
#include "proto/message_json.h"

namespace lockstep::job {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns whether a text may stand without quotes and still be a text for every YAML reader.
bool IsPlain(const std::string& text) {
  static const auto* const reserved = new std::vector<std::string>{
      "null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"};
  if (text.empty() || !absl::ascii_isalpha(text[0]) || text.back() == ' ') return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && absl::string_view("-_./ ").find(c) == absl::string_view::npos) {
      return false;
    }
  }
  const std::string lower = absl::AsciiStrToLower(text);
  return std::find(reserved->begin(), reserved->end(), lower) == reserved->end();
}

std::string YamlText(const std::string& text) {
  if (IsPlain(text)) return text;
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next <= 0x9F) {  // control characters of two bytes
      absl::StrAppendFormat(&out, "\\x%02x", next);
      ++i;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// One value of a field (element `index` of a repeated one) as YAML.
std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool many = field.is_repeated();
#define LS_GET_(Type) \
  (many ? r.GetRepeated##Type(message, &field, index) : r.Get##Type(message, &field))
  if (IsDuration(field)) {
    const auto& duration =
        static_cast<const google::protobuf::Duration&>(r.GetMessage(message, &field));
    return FormatDuration(duration.seconds() * 1'000'000'000 + duration.nanos());
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return LS_GET_(Bool) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(LS_GET_(Int32));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(LS_GET_(UInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(LS_GET_(UInt64));
    case FieldDescriptor::CPPTYPE_INT64:
      if (RuleOf(field).form == Form::kSize) return FormatSize(LS_GET_(Int64));
      return absl::StrCat(LS_GET_(Int64));
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      char buffer[32];
      return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), LS_GET_(Double)).ptr};
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = LS_GET_(String);
      const Form form = RuleOf(field).form;
      const bool words = form == Form::kEvery || form == Form::kEveryEval;
      return words && !text.empty() ? text : YamlText(text);
    }
    default:
      LS_CHECK(false) << field.full_name();
      return "";
  }
#undef LS_GET_
}

// A scalar that is absent, or has the value that its absence means.
bool IsOmitted(const Message& message, const FieldDescriptor& field) {
  if (field.has_presence()) return !message.GetReflection()->HasField(message, &field);
  if (!RuleOf(field).fallback.empty() && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    return false;
  }
  return !message.GetReflection()->HasField(message, &field);
}

std::string CommandText(const Run& run) {
  if (run.shell() && run.command_size() == 1) return YamlText(run.command(0));
  std::vector<std::string> words;
  for (const std::string& word : run.command()) words.push_back(YamlText(word));
  return absl::StrCat("[", absl::StrJoin(words, ", "), "]");
}

// A map of texts by their names.
std::map<std::string, std::string> Texts(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  std::map<std::string, std::string> texts;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const Reflection& parts = *entry.GetReflection();
    texts[parts.GetString(entry, field.message_type()->map_key())] =
        parts.GetString(entry, field.message_type()->map_value());
  }
  return texts;
}

void WriteTexts(const std::map<std::string, std::string>& texts, bool hidden,
                const std::string& indent, std::string* out) {
  for (const auto& [name, value] : texts) {
    absl::StrAppend(out, indent, YamlText(name), ": ", YamlText(hidden ? kHiddenSecret : value),
                    "\n");
  }
}

void WriteMessage(const Message& message, const std::string& indent, std::string* out);

void WriteField(const Message& message, const FieldDescriptor& field, const std::string& indent,
                std::string* out) {
  const Reflection& reflection = *message.GetReflection();
  const std::string start = absl::StrCat(indent, field.name(), ": ");
  const std::string block = absl::StrCat(indent, field.name(), ":\n");
  if (field.is_map()) {
    const std::map<std::string, std::string> texts = Texts(message, field);
    if (texts.empty()) return;
    *out += block;
    return WriteTexts(texts, field.name() == "secrets", indent + "  ", out);
  }
  if (field.is_repeated() && field.message_type() != nullptr) {
    if (reflection.FieldSize(message, &field) > 0) *out += block;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      std::string body;
      WriteMessage(reflection.GetRepeatedMessage(message, &field, i), indent + "    ", &body);
      if (body.empty()) body = indent + "    {}\n";
      body[indent.size() + 2] = '-';
      *out += body;
    }
    return;
  }
  if (field.is_repeated()) {
    const int size = reflection.FieldSize(message, &field);
    if (size == 0 && RuleOf(field).optional) return;
    std::vector<std::string> items;
    for (int i = 0; i < size; ++i) items.push_back(ScalarText(message, field, i));
    absl::StrAppend(out, start, "[", absl::StrJoin(items, ", "), "]\n");
    return;
  }
  if (field.message_type() != nullptr && !IsDuration(field)) {
    if (!reflection.HasField(message, &field)) return;
    const Message& inner = reflection.GetMessage(message, &field);
    if (inner.GetDescriptor() == Run::descriptor()) {
      const auto& run = static_cast<const Run&>(inner);
      if (run.setup().empty()) {
        absl::StrAppend(out, start, CommandText(run), "\n");
      } else {
        absl::StrAppend(out, block, indent, "  command: ", CommandText(run), "\n", indent,
                        "  setup: ", YamlText(run.setup()), "\n");
      }
      return;
    }
    std::string body;
    WriteMessage(inner, indent + "  ", &body);
    absl::StrAppend(out, body.empty() ? start + "{}\n" : block + body);
    return;
  }
  if (!IsOmitted(message, field)) {
    absl::StrAppend(out, start, ScalarText(message, field, 0), "\n");
  }
}

void WriteMessage(const Message& message, const std::string& indent, std::string* out) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) WriteField(message, *type.field(i), indent, out);
}

}  // namespace

std::string ToYaml(const JobSpec& spec) {
  JobSpec written = spec;
  if (!spec.resources().nproc_by().empty()) {
    // They are counted anew, and bounds are meant of what comes of that.
    if (!IsUncounted(spec)) written.mutable_resources()->set_nproc_per_node(1);  // the default
    written.mutable_resources()->clear_ranks_per_node();
  } else {
    // Bounds that flags are beyond are written as they are meant then.
    if (spec.elastic().min_workers() > WantedWorkers(spec)) {
      written.mutable_elastic()->set_min_workers(LeastWorkers(spec));
    }
    if (spec.elastic().max_workers() > 0) {
      written.mutable_elastic()->set_max_workers(MostWorkers(spec));
    }
  }
  std::string out;
  WriteMessage(written, "", &out);
  return out;
}

std::string ToJson(const JobSpec& spec) {
  JobSpec shown = spec;
  for (auto& [name, value] : *shown.mutable_secrets()) value = kHiddenSecret;
  return MessageJson(shown);
}

}  // namespace lockstep::job
