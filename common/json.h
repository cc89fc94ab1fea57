// SPDX-License-Identifier: Apache-2.0
// The one way in which the product writes JSON: members in the order of their calls, the shortest
// numbers that read back as the same value, and texts that are always UTF-8 and hold no control
// character as it is, whatever bytes came in. (Reading is nlohmann's, in checkpoint/.)
// Thread-safety: pure functions; objects are thread-compatible.
#ifndef LOCKSTEP_COMMON_JSON_H_
#define LOCKSTEP_COMMON_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lockstep {

// A JSON string with its quotes. What is not UTF-8 becomes U+FFFD, byte by byte; control characters
// are escaped.
std::string JsonString(std::string_view text);
// A number that reads back as the same double; null when it is not finite.
std::string JsonNumber(double value);
std::string JsonNumber(float value);

// A value of C++ as JSON: texts, booleans, whole numbers (as numbers, also beyond 2^53) and floats.
template <typename Value>
std::string JsonValue(const Value& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<Value>) {
    return std::to_string(value);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return JsonNumber(value);
  } else {
    return JsonString(value);
  }
}

// An object, member by member.
class JsonObject {
 public:
  // `json` is a whole JSON value.
  JsonObject& Raw(std::string_view name, std::string_view json);
  template <typename Value>
  JsonObject& Add(std::string_view name, const Value& value) {
    return Raw(name, JsonValue(value));
  }
  // "{...}"; what was added before.
  std::string Done() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

// An array, element by element.
class JsonArray {
 public:
  // `json` is a whole JSON value.
  JsonArray& Raw(std::string_view json);
  template <typename Value>
  JsonArray& Add(const Value& value) {
    return Raw(JsonValue(value));
  }
  // "[...]".
  std::string Done() const { return text_ + "]"; }

 private:
  std::string text_ = "[";
};

// The array of to_json(element), whole JSON values.
template <typename List, typename Function>
std::string JsonArrayOf(const List& list, const Function& to_json) {
  JsonArray array;
  for (const auto& element : list) array.Raw(to_json(element));
  return array.Done();
}
// The array of texts, booleans or numbers.
template <typename List>
std::string JsonArrayOf(const List& list) {
  JsonArray array;
  for (const auto& element : list) array.Add(element);
  return array.Done();
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_JSON_H_
