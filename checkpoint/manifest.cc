// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/sha256.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr int kSchema = 1;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxFiles = 100'000;

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat("manifest: ", what));
}

// What was sealed is what was written, so what is not known in it is no damage.
absl::Status Newer(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("written by a newer version of lockstep, with ", what,
                   ", which this one does not know; go on with that version, or take another "
                   "checkpoint.dir"));
}

// One text for one value: keys sorted, ASCII, no blanks.
std::string Canonical(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

// Brackets are counted before anything walks over them recursively.
bool TooDeep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<json> ParseJson(std::string_view text) {
  if (text.size() > kMaxManifestBytes) return Damaged("too long");
  if (TooDeep(text)) return Damaged("nested too deeply");
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Damaged("not JSON");
  if (!value.is_object()) return Damaged("not a JSON object");
  return value;
}

// Takes the members of an object one by one; what is left over is a newer version's.
class Members {
 public:
  explicit Members(const json& object) : object_(object) {}

  std::string Text(const char* name) {
    const json* value = Take(name);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get<std::string>();
    Wrong(name, "a text");
    return "";
  }
  int64_t Number(const char* name, int64_t most = std::numeric_limits<int64_t>::max()) {
    const json* value = Take(name);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned() && value->get<uint64_t>() <= static_cast<uint64_t>(most)) {
      return static_cast<int64_t>(value->get<uint64_t>());
    }
    Wrong(name, "a whole number that is not negative");
    return 0;
  }
  // 0 when it is not there: older versions did not write it.
  int64_t LaterNumber(const char* name) { return object_.contains(name) ? Number(name) : 0; }
  // Empty when it is not there.
  std::string LaterText(const char* name) { return object_.contains(name) ? Text(name) : ""; }
  const json* LaterList(const char* name) { return object_.contains(name) ? List(name) : nullptr; }
  // The text of an object; empty for null.
  std::string Object(const char* name) {
    const json* value = Take(name);
    if (value == nullptr || value->is_null()) return "";
    if (value->is_object()) return Canonical(*value);
    Wrong(name, "an object");
    return "";
  }
  const json* List(const char* name) {
    const json* value = Take(name);
    if (value == nullptr || value->is_array()) return value;
    Wrong(name, "a list");
    return nullptr;
  }
  // Errors: InvalidArgument for a key that was not taken; else DataLoss for the first thing that
  // was wrong.
  absl::Status Done() const {
    constexpr size_t kShown = 60;
    for (const auto& member : object_.items()) {
      if (taken_.count(member.key()) > 0) continue;
      return Newer(absl::StrCat("'", absl::CHexEscape(member.key().substr(0, kShown)), "'"));
    }
    if (!error_.empty()) return Damaged(error_);
    return absl::OkStatus();
  }

 private:
  const json* Take(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end()) {
      taken_.insert(name);
      return &*found;
    }
    if (error_.empty()) error_ = absl::StrCat("'", name, "' is missing");
    return nullptr;
  }
  void Wrong(const char* name, const char* expected) {
    if (error_.empty()) error_ = absl::StrCat("'", name, "' is not ", expected);
  }

  const json& object_;
  std::set<std::string> taken_;
  std::string error_;
};

bool IsHash(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

// A plain name, so that a manifest reaches nothing outside its folder.
bool IsFileName(const std::string& text) {
  if (text.empty() || text.size() > 200 || text[0] == '.' || text == kManifestName) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

json FilesOf(const std::vector<FileRecord>& files) {
  json list = json::array();
  for (const FileRecord& file : files) {
    list.push_back(
        json::object({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}}));
  }
  return list;
}

absl::StatusOr<std::vector<FileRecord>> ReadFiles(const json& list) {
  if (list.size() > kMaxFiles) return Damaged("too many files");
  std::vector<FileRecord> files;
  std::set<std::string> names;
  for (const json& entry : list) {
    if (!entry.is_object()) return Damaged("a file that is no object");
    Members members(entry);
    FileRecord file;
    file.name = members.Text("name");
    file.bytes = static_cast<uint64_t>(members.Number("bytes"));
    file.sha256 = members.Text("sha256");
    LS_RETURN_IF_ERROR(members.Done());
    if (!IsFileName(file.name)) return Damaged("a file's name that is none");
    if (!names.insert(file.name).second) return Damaged("a file that is named twice");
    if (!IsHash(file.sha256)) return Damaged("a sha256 that is none");
    files.push_back(std::move(file));
  }
  return files;
}

// 16 digits.
std::string HexOf(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

bool ReadHex(const std::string& text, uint64_t* value) {
  return text.size() == 16 && absl::SimpleHexAtoi(text, value);
}

json DataOf(const std::vector<DataRecord>& data) {
  json list = json::array();
  for (const DataRecord& file : data) {
    list.push_back(
        json::object({{"path", file.path}, {"bytes", file.bytes}, {"hash", HexOf(file.hash)}}));
  }
  return list;
}

absl::StatusOr<std::vector<DataRecord>> ReadData(const json& list) {
  if (list.size() > kMaxFiles) return Damaged("too many data files");
  std::vector<DataRecord> data;
  for (const json& entry : list) {
    if (!entry.is_object()) return Damaged("a data file that is no object");
    Members members(entry);
    DataRecord file;
    file.path = members.Text("path");
    file.bytes = static_cast<uint64_t>(members.Number("bytes"));
    const std::string hash = members.Text("hash");
    LS_RETURN_IF_ERROR(members.Done());
    if (!ReadHex(hash, &file.hash)) return Damaged("a data file's hash that is none");
    data.push_back(std::move(file));
  }
  return data;
}

// `body` with its hash.
std::string Sealed(const json& body) {
  const json whole = json::object({{"checkpoint", body}, {"sha256", Sha256Hex(Canonical(body))}});
  return whole.dump(1, ' ', true, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<json> Unsealed(std::string_view text) {
  LS_ASSIGN_OR_RETURN(json whole, ParseJson(text));
  const auto body = whole.find("checkpoint"), hash = whole.find("sha256");
  if (body == whole.end() || hash == whole.end() || whole.size() != 2 || !body->is_object() ||
      !hash->is_string()) {
    return Damaged("'checkpoint' and 'sha256' are expected");
  }
  if (hash->get<std::string>() != Sha256Hex(Canonical(*body))) {
    return Damaged("it is not what was written (its sha256 differs)");
  }
  json taken = std::move(*body);
  return taken;
}

}  // namespace

std::string FormatManifest(const Manifest& manifest) {
  const json train = json::parse(manifest.train, nullptr, false);
  LS_CHECK(train.is_object()) << "the manifest's train section is no JSON object";
  json eval = nullptr;
  if (!manifest.eval.empty()) eval = json::parse(manifest.eval, nullptr, false);
  LS_CHECK(eval.is_null() || eval.is_object()) << "the manifest's evaluation is no JSON object";
  json body = json::object({{"schema", kSchema},
                            {"step", manifest.step},
                            {"sequence", manifest.sequence},
                            {"generation", manifest.generation},
                            {"run", manifest.run},
                            {"plan_hash", manifest.plan_hash},
                            {"device_hash", manifest.device_hash},
                            {"device", manifest.device},
                            {"threads", manifest.threads},
                            {"train", train},
                            {"eval", eval},
                            {"evaluated_step", manifest.evaluated_step},
                            {"best_step", manifest.best_step},
                            {"best_sha256", manifest.best_sha256},
                            {"files", FilesOf(manifest.files)}});
  // Versions that do not know these read what does not have them.
  if (manifest.samples > 0) body["samples"] = manifest.samples;
  if (!manifest.data.empty()) body["data"] = DataOf(manifest.data);
  if (manifest.data_stamp > 0) body["data_stamp"] = HexOf(manifest.data_stamp);
  return Sealed(body);
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text) {
  LS_ASSIGN_OR_RETURN(const json body, Unsealed(text));
  Members members(body);
  const int64_t schema = members.Number("schema");
  if (schema > kSchema) return Newer(absl::StrCat("schema ", schema));
  if (schema != kSchema) return Damaged(absl::StrCat("a schema that is not ", kSchema));
  Manifest manifest;
  manifest.step = members.Number("step");
  manifest.sequence = members.Number("sequence");
  manifest.generation = members.LaterNumber("generation");
  manifest.run = members.Text("run");
  manifest.plan_hash = members.Text("plan_hash");
  manifest.device_hash = members.Text("device_hash");
  manifest.device = members.Text("device");
  manifest.threads = static_cast<int32_t>(members.Number("threads", 1 << 20));
  manifest.train = members.Object("train");
  manifest.samples = members.LaterNumber("samples");
  const json* data = members.LaterList("data");
  const std::string stamp = members.LaterText("data_stamp");
  manifest.eval = members.Object("eval");
  manifest.evaluated_step = members.Number("evaluated_step");
  manifest.best_step = members.Number("best_step");
  manifest.best_sha256 = members.Text("best_sha256");
  const json* files = members.List("files");
  LS_RETURN_IF_ERROR(members.Done());
  if (manifest.train.empty()) return Damaged("'train' is null");
  if (!manifest.best_sha256.empty() && !IsHash(manifest.best_sha256)) {
    return Damaged("a sha256 that is none");
  }
  if (!stamp.empty() && !ReadHex(stamp, &manifest.data_stamp)) {
    return Damaged("a stamp of the data that is none");
  }
  if (data != nullptr) {
    LS_ASSIGN_OR_RETURN(manifest.data, ReadData(*data));
  }
  LS_ASSIGN_OR_RETURN(manifest.files, ReadFiles(*files));
  if (manifest.files.empty()) return Damaged("it names no file");
  return manifest;
}

std::string FormatFileRecords(const std::vector<FileRecord>& files) {
  return Sealed(json::object({{"files", FilesOf(files)}}));
}

absl::StatusOr<std::vector<FileRecord>> ParseFileRecords(std::string_view text) {
  LS_ASSIGN_OR_RETURN(const json body, Unsealed(text));
  Members members(body);
  const json* files = members.List("files");
  LS_RETURN_IF_ERROR(members.Done());
  return ReadFiles(*files);
}

}  // namespace lockstep::checkpoint
