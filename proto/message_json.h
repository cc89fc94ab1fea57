// SPDX-License-Identifier: Apache-2.0
// Messages as JSON and as text for people.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_PROTO_MESSAGE_JSON_H_
#define LOCKSTEP_PROTO_MESSAGE_JSON_H_

#include <string>

#include "common/json.h"
#include "google/protobuf/message.h"

namespace lockstep {

// What becomes of fields that have no value of their own.
enum class Unset {
  // As protobuf's JSON has it, to be read back: what equals its type's default is left out, and
  // numbers that are not finite are "NaN", "Infinity" and "-Infinity".
  kOmitted,
  // For programs that read it: numbers, texts, lists and enums are always there, and numbers that
  // are not finite are null. Sub-messages that are not set are left out.
  kWritten,
};

// One object on one line, with the proto's names in the proto's order. It differs from protobuf's
// own JSON in that whole numbers of 64 bits are numbers and maps are sorted by key;
// JsonStringToMessage reads it all the same. Fields of a oneof, and optional ones, are left out
// when they are not set.
std::string MessageJson(const google::protobuf::Message& message, Unset unset = Unset::kOmitted);

// Makes every text of the message safe to show on a terminal (common/printable.h).
void MakePrintable(google::protobuf::Message* message);
// The same to a copy.
template <typename MessageType>
MessageType Printed(MessageType message) {
  MakePrintable(&message);
  return message;
}

}  // namespace lockstep

#endif  // LOCKSTEP_PROTO_MESSAGE_JSON_H_
