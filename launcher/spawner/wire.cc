// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/wire.h"

#include <cstring>

namespace lockstep::launcher {
namespace {

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string* out, std::string_view text) {
  Put(out, static_cast<uint32_t>(text.size()));
  out->append(text);
}

void PutList(std::string* out, const std::vector<std::string>& list) {
  Put(out, static_cast<uint32_t>(list.size()));
  for (const std::string& text : list) PutString(out, text);
}

// Reads what the functions above wrote; `ok` turns false at the first value that is not whole.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  template <typename T>
  T Get() {
    T value{};
    if (text_.size() < sizeof(value)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, text_.data(), sizeof(value));
    text_.remove_prefix(sizeof(value));
    return value;
  }
  std::string GetString() {
    const uint32_t size = Get<uint32_t>();
    if (text_.size() < size) {
      ok_ = false;
      return "";
    }
    std::string value(text_.substr(0, size));
    text_.remove_prefix(size);
    return value;
  }
  std::vector<std::string> GetList() {
    std::vector<std::string> list;
    const uint32_t count = Get<uint32_t>();
    for (uint32_t i = 0; i < count && ok_; ++i) list.push_back(GetString());
    return list;
  }
  bool ok() const { return ok_; }
  bool Whole() const { return ok_ && text_.empty(); }

 private:
  std::string_view text_;
  bool ok_ = true;
};

}  // namespace

std::string EncodeCommand(const SpawnerCommand& command) {
  std::string out;
  Put(&out, static_cast<uint8_t>(command.kind));
  Put(&out, command.id);
  Put(&out, command.signal);
  Put(&out, static_cast<uint8_t>(command.keep_output));
  PutList(&out, command.argv);
  PutList(&out, command.set_env);
  PutList(&out, command.unset_env);
  PutString(&out, command.cwd);
  Put(&out, command.uid);
  Put(&out, command.gid);
  Put(&out, static_cast<uint32_t>(command.groups.size()));
  for (const uint32_t group : command.groups) Put(&out, group);
  return out;
}

absl::StatusOr<SpawnerCommand> DecodeCommand(std::string_view text) {
  Reader reader(text);
  SpawnerCommand command;
  command.kind = static_cast<SpawnerCommand::Kind>(reader.Get<uint8_t>());
  command.id = reader.Get<uint64_t>();
  command.signal = reader.Get<int32_t>();
  command.keep_output = reader.Get<uint8_t>() != 0;
  command.argv = reader.GetList();
  command.set_env = reader.GetList();
  command.unset_env = reader.GetList();
  command.cwd = reader.GetString();
  command.uid = reader.Get<int64_t>();
  command.gid = reader.Get<uint32_t>();
  const uint32_t groups = reader.Get<uint32_t>();
  for (uint32_t i = 0; i < groups && reader.ok(); ++i) {
    command.groups.push_back(reader.Get<uint32_t>());
  }
  if (!reader.Whole()) return absl::InternalError("spawner: a command is not whole");
  return command;
}

}  // namespace lockstep::launcher
