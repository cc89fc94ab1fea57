// SPDX-License-Identifier: Apache-2.0
#include "proto/message_json.h"

#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/check.h"
#include "common/printable.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"

namespace lockstep {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::util::TimeUtil;

std::string SubMessageJson(const Message& message, Unset unset) {
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    return JsonString(TimeUtil::ToString(static_cast<const google::protobuf::Timestamp&>(message)));
  }
  if (message.GetDescriptor() == google::protobuf::Duration::descriptor()) {
    return JsonString(TimeUtil::ToString(static_cast<const google::protobuf::Duration&>(message)));
  }
  return MessageJson(message, unset);
}

std::string RealJson(double value, std::string shortest, Unset unset) {
  if (std::isfinite(value) || unset == Unset::kWritten) return shortest;
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

// One value of a field: element `index` of a repeated one.
std::string ValueJson(const Message& message, const FieldDescriptor& field, int index,
                      Unset unset) {
  const Reflection& r = *message.GetReflection();
  const bool many = field.is_repeated();
#define LS_GET_(Type) \
  (many ? r.GetRepeated##Type(message, &field, index) : r.Get##Type(message, &field))
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return JsonValue(LS_GET_(Bool));
    case FieldDescriptor::CPPTYPE_INT32:
      return JsonValue(LS_GET_(Int32));
    case FieldDescriptor::CPPTYPE_INT64:
      return JsonValue(LS_GET_(Int64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return JsonValue(LS_GET_(UInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return JsonValue(LS_GET_(UInt64));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return RealJson(LS_GET_(Float), JsonValue(LS_GET_(Float)), unset);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return RealJson(LS_GET_(Double), JsonValue(LS_GET_(Double)), unset);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = LS_GET_(EnumValue);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      return value == nullptr ? JsonValue(number) : JsonString(value->name());
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = LS_GET_(String);
      if (field.type() != FieldDescriptor::TYPE_BYTES) return JsonString(text);
      return JsonString(absl::Base64Escape(text));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return SubMessageJson(
          many ? r.GetRepeatedMessage(message, &field, index) : r.GetMessage(message, &field),
          unset);
  }
#undef LS_GET_
  LS_CHECK(false) << field.full_name();
  return "null";
}

// A map's entries by key, so that equal maps give equal bytes.
std::string MapJson(const Message& message, const FieldDescriptor& field, Unset unset) {
  const Reflection& r = *message.GetReflection();
  std::map<std::string, std::string> entries;
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const Message& entry = r.GetRepeatedMessage(message, &field, i);
    const FieldDescriptor& key = *field.message_type()->map_key();
    std::string name = key.cpp_type() == FieldDescriptor::CPPTYPE_STRING
                           ? entry.GetReflection()->GetString(entry, &key)
                           : ValueJson(entry, key, 0, unset);
    entries[std::move(name)] = ValueJson(entry, *field.message_type()->map_value(), 0, unset);
  }
  JsonObject object;
  for (const auto& [name, json] : entries) object.Raw(name, json);
  return object.Done();
}

}  // namespace

std::string MessageJson(const Message& message, Unset unset) {
  const Reflection& r = *message.GetReflection();
  JsonObject object;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      const int size = r.FieldSize(message, &field);
      if (size == 0 && unset == Unset::kOmitted) continue;
      if (field.is_map()) {
        object.Raw(field.name(), MapJson(message, field, unset));
        continue;
      }
      JsonArray array;
      for (int k = 0; k < size; ++k) array.Raw(ValueJson(message, field, k, unset));
      object.Raw(field.name(), array.Done());
    } else if (r.HasField(message, &field)) {
      object.Raw(field.name(), ValueJson(message, field, 0, unset));
    } else if (unset == Unset::kWritten && field.containing_oneof() == nullptr &&
               field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      object.Raw(field.name(), ValueJson(message, field, 0, unset));
    }
  }
  return object.Done();
}

void MakePrintable(Message* message) {
  const Reflection& r = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int size = field->is_repeated() ? r.FieldSize(*message, field) : 1;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < size; ++i) {
        MakePrintable(field->is_repeated() ? r.MutableRepeatedMessage(message, field, i)
                                           : r.MutableMessage(message, field));
      }
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < size; ++i) {
        if (field->is_repeated()) {
          r.SetRepeatedString(message, field, i,
                              Printable(r.GetRepeatedString(*message, field, i)));
        } else {
          r.SetString(message, field, Printable(r.GetString(*message, field)));
        }
      }
    }
  }
}

}  // namespace lockstep
