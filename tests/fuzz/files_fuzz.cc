// SPDX-License-Identifier: Apache-2.0
// Whatever a node sends to who fetches a run's files, and whatever a coordinator asks a node for:
// files or an error, and nothing is made or opened outside the folder.
//
// Records of a kind's byte, two bytes of length and a message. The kind's low bit: a SendFiles
// (proto/coordinator_agent.proto) for the node; otherwise a FilePiece (proto/files.proto), with the
// right digest put in where the second bit is set.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/check.h"
#include "launcher/agent/run_files.h"
#include "launcher/verbs/file_receiver.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

const std::string& Base() {
  static const std::string* const base = [] {
    std::string pattern = (fs::temp_directory_path() / "lockstep-fuzz-XXXXXX").string();
    LS_CHECK(::mkdtemp(pattern.data()) != nullptr);
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(Base(), ignored);
    });
    return new std::string(pattern);
  }();
  return *base;
}

// A folder with what is wanted is listed by names within it.
void Ask(const std::string& bytes) {
  SendFiles wanted;
  if (!wanted.ParseFromString(bytes)) return;
  // The node's user has chosen where runs lie: nothing else of the machine may be opened.
  const auto folder = OpenRunFolder(wanted, "", Base() + "/runs");
  if (!folder.ok()) return;
  const auto names = ListRunFiles(folder->get(), wanted);
  if (!names.ok()) return;
  for (const std::string& name : *names) LS_CHECK(name.find("..") == std::string::npos) << name;
}

void Receive(const std::string& folder, const uint8_t* data, size_t size) {
  FileReceiver receiver(folder);
  std::string digest;
  std::string name;
  for (size_t at = 0; at + 3 <= size;) {
    const uint8_t kind = data[at];
    const size_t length = std::min<size_t>(data[at + 1] << 8 | data[at + 2], size - at - 3);
    const std::string bytes(reinterpret_cast<const char*>(data + at + 3), length);
    at += 3 + length;
    if ((kind & 1) != 0) {
      Ask(bytes);
      continue;
    }
    FilePiece piece;
    if (!piece.ParseFromString(bytes)) continue;
    if ((kind & 2) != 0) {
      if (piece.name() != name) digest = name = piece.name();
      digest = PieceDigest(digest, piece.data());
      piece.set_digest(digest);
    }
    if (!receiver.Take(piece).ok()) break;
    if (!receiver.names().empty() && receiver.names().back() == name) name.clear();  // it is whole
  }
  receiver.Finish().IgnoreError();
  for (const std::string& whole : receiver.names()) {
    struct stat info {};
    LS_CHECK_EQ(::lstat((folder + "/" + whole).c_str(), &info), 0) << whole;
    LS_CHECK(S_ISREG(info.st_mode)) << whole;
  }
}

}  // namespace
}  // namespace lockstep::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::launcher;  // NOLINT: a fuzz target is one function
  std::error_code ignored;
  fs::create_directories(Base() + "/in/folder", ignored);
  fs::create_directories(Base() + "/runs/mlp-j1/logs", ignored);
  Receive(Base() + "/in/folder", data, size);
  for (const auto& entry : fs::directory_iterator(Base())) {
    const std::string name = entry.path().filename().string();
    LS_CHECK(name == "in" || name == "runs") << name;
  }
  for (const auto& entry : fs::directory_iterator(Base() + "/in")) {
    LS_CHECK(entry.path().filename() == "folder") << entry.path().string();
  }
  fs::remove_all(Base() + "/in", ignored);
  return 0;
}
