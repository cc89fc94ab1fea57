// SPDX-License-Identifier: Apache-2.0
// Runs the scripts of this folder against the coordinator's core, or against all machines of the
// control plane, and compares what they do with what is written; `scenario_test --rewrite
// [FILE...]` writes down what they do now.
#include <stdlib.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/scenarios/script.h"
#include "tests/scenarios/world.h"

namespace lockstep::coordinator {
namespace {

bool Read(const std::string& file, std::string& text) {
  std::ifstream in(file);
  std::stringstream content;
  content << in.rdbuf();
  text = content.str();
  return in.good() && !text.empty();
}

void ShowDifference(const std::string& file, const Block& block,
                    const std::vector<std::string>& now) {
  std::cout << file << ": " << block.command << "\n";
  for (const std::string& line : block.output) std::cout << "  - " << line << "\n";
  for (const std::string& line : now) std::cout << "  + " << line << "\n";
}

// Returns whether the script and the coordinator agree.
bool RunScript(const std::string& file, bool rewrite) {
  std::string text;
  if (!Read(file, text)) {
    std::cout << file << ": cannot be read or is empty\n";
    return false;
  }
  absl::StatusOr<std::vector<Block>> blocks = ParseScript(text);
  if (!blocks.ok() || blocks->empty()) {
    std::cout << file << ": " << blocks.status().ToString() << "\n";
    return false;
  }
  const std::unique_ptr<World> world = MakeWorld(Command(blocks->front().command));
  bool same = true, read = true;
  for (Block& block : *blocks) {
    const Command command(block.command);
    const std::vector<std::string> now = world->Do(command);
    if (now != block.output && !rewrite) ShowDifference(file, block, now);
    same &= now == block.output;
    for (const std::string& word : command.unread()) {
      std::cout << file << ": " << block.command << ": nobody reads '" << word << "'\n";
      read = false;
    }
    block.output = now;
  }
  if (rewrite && FormatScript(*blocks) != text) std::ofstream(file) << FormatScript(*blocks);
  return read && (same || rewrite);
}

int Main(int argc, char** argv) {
  bool rewrite = false;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--rewrite") {
      rewrite = true;
    } else {
      files.push_back(argv[i]);
    }
  }
  if (files.empty()) files = absl::StrSplit(LOCKSTEP_SCENARIOS, ',', absl::SkipEmpty());
  int wrong = 0;
  for (const std::string& file : files) wrong += RunScript(file, rewrite) ? 0 : 1;
  std::cout << files.size() << " scenarios, " << wrong << " differ\n";
  return wrong == 0 && !files.empty() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  ::setenv("TZ", "UTC", 1);  // of times that people are told
  return lockstep::coordinator::Main(argc, argv);
}
