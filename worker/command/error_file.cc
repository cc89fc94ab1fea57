// SPDX-License-Identifier: Apache-2.0
#include "worker/command/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/fd.h"
#include "common/utf8.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace lockstep::worker {
namespace {

constexpr size_t kMostRead = 1 << 20;
constexpr size_t kMostShown = 1000;

}  // namespace

std::string ErrorMessage(std::string_view text) {
  google::protobuf::Struct file;
  if (!google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, &file).ok()) {
    return "";
  }
  const auto found = file.fields().find("message");
  if (found == file.fields().end()) return "";
  const google::protobuf::Value* value = &found->second;
  if (value->has_struct_value()) {
    const auto inner = value->struct_value().fields().find("message");
    if (inner == value->struct_value().fields().end()) return "";
    value = &inner->second;
  }
  std::string message = value->string_value();
  if (message.size() > kMostShown) message = message.substr(0, kMostShown) + "...";
  return ToUtf8(message);
}

std::string ReadErrorFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  char buffer[1 << 14];
  while (fd.valid() && text.size() < kMostRead) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return ErrorMessage(text);
}

}  // namespace lockstep::worker
