// SPDX-License-Identifier: Apache-2.0
// Single values of the job file: numbers, words, durations, sizes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/printable.h"
#include "common/step_range.h"
#include "google/protobuf/duration.pb.h"
#include "job/decode.h"
#include "job/meaning/units.h"
#include "job/nearest_name.h"
#include "job/schema.h"

namespace lockstep::job {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kSecond = 1'000'000'000;

std::string Number(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

// As the user would write the bound of this field.
std::string Bound(const FieldDescriptor& field, const FieldRule& rule, double value) {
  if (IsDuration(field)) return FormatDuration(std::llround(value * kSecond));
  if (rule.form == Form::kSize) return FormatSize(static_cast<int64_t>(value));
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return Number(value);
}

std::string CheckRange(const FieldDescriptor& field, double value) {
  const FieldRule& rule = RuleOf(field);
  const bool low = rule.min_excluded ? value <= rule.min : value < rule.min;
  const bool high = rule.max_excluded ? value >= rule.max : value > rule.max;
  if (!low && !high) {
    const bool is_one = rule.among.empty() || std::count(rule.among.begin(), rule.among.end(),
                                                         static_cast<int64_t>(value)) > 0;
    return is_one ? "" : absl::StrCat("must be one of ", absl::StrJoin(rule.among, ", "));
  }
  std::string limits;
  if (rule.min > -1e300) {
    limits =
        absl::StrCat(rule.min_excluded ? "more than " : "at least ", Bound(field, rule, rule.min));
  }
  if (rule.max < 1e300) {
    absl::StrAppend(&limits, limits.empty() ? "" : " and ",
                    rule.max_excluded ? "less than " : "at most ", Bound(field, rule, rule.max));
  }
  return absl::StrCat("must be ", limits);
}

bool IsName(absl::string_view text) {
  if (text.empty() || text.size() > kMostNameLength || !absl::ascii_isalnum(text[0])) return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

bool IsDevice(absl::string_view text) {
  int index = 0;
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  return absl::ConsumePrefix(&text, "cuda:") && text.size() <= 4 && !text.empty() &&
         text.find_first_not_of("0123456789") == absl::string_view::npos &&
         absl::SimpleAtoi(text, &index);
}

// What a shell would have made of a path, and nothing here does: empty, or what to write instead.
std::string CheckPath(absl::string_view path) {
  if (absl::StartsWith(path, "~")) {
    return absl::StrCat("'~' is not expanded in a job file: write the whole path, or ./",
                        Printable(std::string(path)), " for a folder of that name");
  }
  if (absl::StrContains(path, "${LOCKSTEP_ARRAY_INDEX}")) {
    return "'submit --array' alone replaces ${LOCKSTEP_ARRAY_INDEX}; without it write the number";
  }
  // "./$X" is what a folder of that name is written as.
  const size_t begin = absl::StartsWith(path, "./$") ? 3 : 0;
  for (size_t at = path.find('$', begin); at != absl::string_view::npos;
       at = path.find('$', at + 1)) {
    const char next = at + 1 < path.size() ? path[at + 1] : ' ';
    if (next != '{' && next != '_' && !absl::ascii_isalpha(static_cast<unsigned char>(next))) {
      continue;
    }
    std::string advice = "variables are not expanded in a job file: write the path itself";
    if (at > 0 || path.find('$', at + 1) != absl::string_view::npos) return advice;
    return absl::StrCat(advice, ", or ./", Printable(std::string(path)),
                        " for a folder of that name");
  }
  return "";
}

// Empty on success, else what was expected.
std::string CheckNcclNames(const std::vector<std::string>& choices, absl::string_view text) {
  for (absl::string_view part : absl::StrSplit(text, ';')) {
    if (const size_t colon = part.find(':'); colon != absl::string_view::npos) {
      part.remove_prefix(colon + 1);  // behind the function that it is about
    }
    absl::ConsumePrefix(&part, "^");
    for (const absl::string_view name : absl::StrSplit(part, ',')) {
      if (std::none_of(choices.begin(), choices.end(), [&](const std::string& choice) {
            return absl::EqualsIgnoreCase(name, choice);
          })) {
        return absl::StrCat("expected ", absl::StrJoin(choices, ", "),
                            ", with commas, or '^' and what it may not be");
      }
    }
  }
  return "";
}

// The text of a string field, made canonical; empty on success, else what was expected.
std::string CheckText(const FieldDescriptor& field, std::string* text) {
  const FieldRule& rule = RuleOf(field);
  if (rule.form == Form::kNcclNames) return CheckNcclNames(rule.choices, *text);
  if (!rule.choices.empty()) {
    for (const std::string& choice : rule.choices) {
      if (*text == choice) return "";
    }
    return absl::StrCat("expected one of ", absl::StrJoin(rule.choices, ", "));
  }
  // What has to be there, or would be the default, is not said by nothing.
  if (text->empty() && (rule.required || !rule.fallback.empty())) {
    return "write a value or remove the key";
  }
  switch (rule.form) {
    case Form::kName:
      if (IsName(*text)) return "";
      return "expected letters, digits, '-', '_' and '.', at most 63, the first a letter or digit";
    case Form::kDevice:
      return IsDevice(*text) ? "" : "expected auto, cpu, cuda or cuda:N";
    case Form::kEvery:
    case Form::kEveryEval: {
      const bool eval = rule.form == Form::kEveryEval;
      const absl::StatusOr<Every> every = ParseEvery(*text);
      if (!every.ok() || (eval ? every->timed() : every->never())) {
        return eval ? "expected such as '500 steps', '1 epoch' or 'never'"
                    : "expected such as '500 steps', '1 epoch' or '30s'";
      }
      *text = every->ToString();
      return "";
    }
    case Form::kSteps:
      return StepRange::Parse(*text).ok() ? "" : "expected such as '10:20', '10:' or 'all'";
    case Form::kPath:
      return CheckPath(*text);
    default:
      return "";
  }
}

std::string DecodeBool(const YamlNode& node, bool* value) {
  if (node.plain && (node.text == "true" || node.text == "false")) {
    *value = node.text == "true";
    return "";
  }
  return "expected true or false";
}

template <typename T>
std::string DecodeInteger(const FieldDescriptor& field, const YamlNode& node, T* value) {
  absl::string_view text = node.text;
  absl::ConsumePrefix(&text, "+");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc::result_out_of_range) return "the number is too large";
  if (error != std::errc() || end != text.data() + text.size()) {
    if (!std::is_signed_v<T> && absl::StartsWith(text, "-")) return "must be at least 0";
    return "expected a whole number";
  }
  if (!node.plain) return "expected a whole number, without quotes";
  return CheckRange(field, static_cast<double>(*value));
}

std::string DecodeDouble(const FieldDescriptor& field, const YamlNode& node, double* value) {
  absl::string_view text = node.text;
  absl::ConsumePrefix(&text, "+");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc::result_out_of_range) return "the number is out of range";
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(*value)) {
    return "expected a number";
  }
  if (!node.plain) return "expected a number, without quotes";
  return CheckRange(field, *value);
}

std::string DecodeDuration(const FieldDescriptor& field, const YamlNode& node, Message* message) {
  const absl::StatusOr<int64_t> nanoseconds = ParseDuration(node.text);
  if (!nanoseconds.ok()) return std::string(nanoseconds.status().message());
  std::string error = CheckRange(field, static_cast<double>(*nanoseconds) / kSecond);
  if (!error.empty()) return error;
  google::protobuf::Duration duration;
  duration.set_seconds(*nanoseconds / kSecond);
  duration.set_nanos(static_cast<int32_t>(*nanoseconds % kSecond));
  message->GetReflection()->MutableMessage(message, &field)->CopyFrom(duration);
  return "";
}

std::string DecodeSize(const FieldDescriptor& field, const YamlNode& node, int64_t* value) {
  const absl::StatusOr<int64_t> bytes = ParseSize(node.text);
  if (!bytes.ok()) return std::string(bytes.status().message());
  *value = *bytes;
  return CheckRange(field, static_cast<double>(*bytes));
}

// Reads with `decode(&value)` and stores with Set or Add.
#define LS_STORE_(Type, cpp_type, decode)                          \
  {                                                                \
    cpp_type value{};                                              \
    std::string error = decode;                                    \
    if (!error.empty()) return error;                              \
    if (field.is_repeated()) {                                     \
      message->GetReflection()->Add##Type(message, &field, value); \
    } else {                                                       \
      message->GetReflection()->Set##Type(message, &field, value); \
    }                                                              \
    return "";                                                     \
  }

std::string DecodeByType(Message* message, const FieldDescriptor& field, const YamlNode& node) {
  if (IsDuration(field)) return DecodeDuration(field, node, message);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      LS_STORE_(Bool, bool, DecodeBool(node, &value))
    case FieldDescriptor::CPPTYPE_INT32:
      LS_STORE_(Int32, int32_t, DecodeInteger(field, node, &value))
    case FieldDescriptor::CPPTYPE_UINT32:
      LS_STORE_(UInt32, uint32_t, DecodeInteger(field, node, &value))
    case FieldDescriptor::CPPTYPE_UINT64:
      LS_STORE_(UInt64, uint64_t, DecodeInteger(field, node, &value))
    case FieldDescriptor::CPPTYPE_INT64:
      if (RuleOf(field).form == Form::kSize) {
        LS_STORE_(Int64, int64_t, DecodeSize(field, node, &value))
      }
      LS_STORE_(Int64, int64_t, DecodeInteger(field, node, &value))
    case FieldDescriptor::CPPTYPE_DOUBLE:
      LS_STORE_(Double, double, DecodeDouble(field, node, &value))
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text = node.text;
      LS_STORE_(String, std::string, CheckText(field, &text).append((value = text, "")))
    }
    default:
      return "this kind of field cannot be written in a job file";
  }
}
#undef LS_STORE_

}  // namespace

std::string DecodeScalar(Message* message, const FieldDescriptor& field, const YamlNode& node) {
  return DecodeByType(message, field, node);
}

}  // namespace lockstep::job
